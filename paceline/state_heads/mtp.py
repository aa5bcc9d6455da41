"""Draft with the multi-token prediction (MTP) layer of the target's checkpoint.

The layer reads a token's embedding and the target's last hidden state (DeepSeek-AI 2024, section
2.2). The transformers library loads and runs the layer.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers import PreTrainedModel
from transformers.modeling_layers import MtpModel

from paceline.errors import ConfigError, UnsupportedModelError
from paceline.model.forward_arguments import GENERATE_CACHE
from paceline.state_heads.forward_pass import HeadBatch
from paceline.state_heads.step_head import StepHead

_KINDS = ("full_attention", "sliding_attention")


class MtpHead(StepHead):
    """Drafts every tree level with the target's first MTP layer."""

    def __init__(self) -> None:
        super().__init__()
        self._mtp: Any = None

    def attach(self, target: PreTrainedModel) -> None:
        """Load the MTP layer from the target's checkpoint.

        The layer uses the target's embedding and LM head.

        Args:
            target: The model that verifies the drafts.
        Raises:
            ConfigError: The checkpoint has no MTP layer that transformers can load.
            UnsupportedModelError: The layer is recurrent, so draft tokens cannot be rolled back.
        """
        config = target.config.get_text_config(decoder=True)
        if not getattr(config, "num_mtp_layers", None):
            raise ConfigError(
                f"state head 'mtp': got {type(target).__name__} without MTP layers; expected a"
                " checkpoint whose configuration lists some (num_mtp_layers). Choose another"
                " head or drafter."
            )
        try:
            mtp: Any = MtpModel.from_pretrained(target, device_map={"": target.device})
        except Exception as error:  # transformers raises many types of errors
            raise ConfigError(
                f"state head 'mtp': the MTP layer in {target.config.name_or_path!r} cannot be"
                f" loaded: {error}. Choose another head or drafter."
            ) from error
        kind = (getattr(mtp.config, "layer_types", None) or _KINDS)[0]
        if kind not in _KINDS:
            raise UnsupportedModelError(
                f"state head 'mtp': got an MTP layer of kind {kind}; expected attention, whose"
                " draft tokens can be rolled back. Choose another head or drafter."
            )
        self.window = getattr(mtp.config, "sliding_window", None) if kind == _KINDS[1] else None
        ropes = getattr(mtp.config, "rope_parameters", None) or {}
        # Some models have separate rotary frequencies per kind of layer.
        self._rotary = {"layer_type": kind} if kind in ropes else {}
        if mtp.config._attn_implementation != "eager":
            mtp.config._attn_implementation = "sdpa"  # it accepts the masks of draft trees
        self._mtp, self.dtype = mtp.eval(), target.dtype
        self.begin(1, target.device)

    def fuse(self, states: Tensor) -> Tensor:
        """Return the target states that the LM head reads, in the MTP layer's dtype."""
        return states[:, 0].to(self.dtype)

    def run(self, batch: HeadBatch) -> Tensor:
        """Run the MTP layer on a batch; return [slots, columns, hidden]."""
        embedded = self._mtp.embed_tokens(batch.token_ids)
        turns = None
        if self._mtp.rotary_emb is not None:
            turns = self._mtp.rotary_emb(embedded, position_ids=batch.positions, **self._rotary)
        outputs: Tensor = self._mtp.layers[0](
            embedded,
            batch.states,
            position_embeddings=turns,
            position_ids=batch.positions,
            attention_mask=batch.mask,
            **{GENERATE_CACHE: self.cache},
        )
        return self._mtp.shared_post_norm(outputs) if self._mtp.use_shared_post_norm else outputs

    def project(self, outputs: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return logits over the target's vocabulary; column i belongs to token i."""
        logits: Tensor = self._mtp._project_to_logits(outputs)
        return logits, None
