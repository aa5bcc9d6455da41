"""Load an EAGLE-3 head in the format of the speculators library or EAGLE's own."""

from __future__ import annotations

import copy
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from paceline.model.forward_arguments import GENERATE_CACHE
from paceline.state_heads import fit
from paceline.state_heads.eagle3_module import Eagle3Module, Eagle3Shape
from paceline.state_heads.files import HeadFiles
from paceline.state_heads.forward_pass import HeadBatch
from paceline.state_heads.layer_configs import layer_config
from paceline.state_heads.settings import EAGLE3_FIRST_LAYER, EAGLE3_LAST_LAYER_FROM_END
from paceline.state_heads.step_head import StepHead
from paceline.state_heads.weights import (
    TARGET_PARTS,
    dtype_of,
    own_token_ids,
    plain_weight,
    vocabulary_rows,
)

_FLAGS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")


class Eagle3Head(StepHead):
    """Drafts with a published EAGLE-3 head.

    Args:
        files: Files of the head.
    Raises:
        ConfigError: The configuration does not describe a supported EAGLE-3 head.
    """

    def __init__(self, files: HeadFiles) -> None:
        super().__init__()
        self._files = files
        settings = files.config.get("transformer_layer_config", files.config)
        try:
            self._config: Any = layer_config(settings)
        except (ValueError, TypeError) as error:
            raise files.error(error) from error
        self._module: Eagle3Module
        self._token_ids: Tensor | None = None
        self._vocab_size = 0

    def attach(self, target: PreTrainedModel) -> None:
        """Load the weights of the head, using the target's modules if some are missing.

        If the files contain no embedding or no LM head, the head uses that of the target.

        Args:
            target: The model that verifies the drafts.
        Raises:
            ConfigError: The head was made for a different model, or its weights are damaged.
            UnsupportedModelError: The embedding or LM head that the head would use is quantised.
        """
        source, tensors = self._files.source, self._files.tensors()
        self.layers = self._layers(target)
        fit.check_layers(source, self.layers, target)
        fit.warn_of_vocabulary(source, self._config.vocab_size, target)
        table = tensors.get("embed_tokens.weight")
        fit.warn_of_embedding(source, table, target)
        if table is None:
            table = plain_weight(source, target.get_input_embeddings(), "embedding")
        fit.check_width(source, self._config.hidden_size, table.shape[1])
        module, self._token_ids = self._load(tensors, target)
        self._vocab_size, self.dtype = vocabulary_rows(target), dtype_of(module, target)
        self._module = module.to(target.device, self.dtype).eval()
        table = table.to(target.device, self.dtype)
        self._module.embed_tokens = nn.Embedding.from_pretrained(table)  # type: ignore[no-untyped-call]
        self.begin(len(module.layers), target.device)

    def _layers(self, target: PreTrainedModel) -> tuple[int, ...]:
        """Return the target layers whose inputs the head reads."""
        ids = self._files.config.get("eagle_aux_hidden_state_layer_ids")
        if ids is not None:
            return tuple(ids)
        # This entry refers to the output of each layer, which is the input of the next layer.
        nested = (self._files.config.get("eagle_config") or {}).get(
            "eagle_aux_hidden_state_layer_ids"
        )
        if nested is not None:
            return tuple(layer + 1 for layer in nested)
        return default_layers(target)

    def _load(
        self, tensors: dict[str, Tensor], target: PreTrainedModel
    ) -> tuple[Eagle3Module, Tensor | None]:
        """Return the head's module with its weights, and the token id of each logit.

        Args:
            tensors: Weights in the files of the head.
            target: The model that verifies the drafts.
        Returns:
            The module, and the token ids [draft vocabulary]. The ids are None if logit i belongs
            to token i.
        """
        states = int(target.config.get_text_config(decoder=True).hidden_size)
        weights = {
            name.replace("midlayer.", "layers.0."): tensor
            for name, tensor in tensors.items()
            if name not in TARGET_PARTS
        }
        if "fc.weight" in weights:
            read = weights["fc.weight"].shape[-1]
            fit.check_width(self._files.source, read, len(self.layers) * states)
        try:
            token_ids = own_token_ids(tensors, vocabulary_rows(target))
            if "lm_head.weight" not in weights:
                head = plain_weight(self._files.source, target.get_output_embeddings(), "LM head")
                rows = slice(None) if token_ids is None else token_ids.to(head.device)
                weights["lm_head.weight"] = head[rows]
            shape = Eagle3Shape(
                copy.deepcopy(self._config),
                len(self.layers),
                states,
                len(weights["lm_head.weight"]),
                **{name: bool(self._files.config.get(name, False)) for name in _FLAGS},
            )
            module = Eagle3Module(shape)
            module.load_state_dict(weights, strict=True)
            if token_ids is not None and len(token_ids) != shape.draft_vocab_size:
                raise ValueError(
                    f"{len(token_ids)} token ids for {shape.draft_vocab_size} rows of the LM head"
                )
        except (LookupError, RuntimeError, ValueError, TypeError) as error:
            raise self._files.error(error) from error
        return module, None if token_ids is None else token_ids.to(target.device)

    def fuse(self, states: Tensor) -> Tensor:
        """Project the target states [n, 1 + layers, target hidden] to [n, hidden]."""
        return self._module.fuse(states[:, 1:].to(self.dtype))

    def run(self, batch: HeadBatch) -> Tensor:
        """Run the head's layers on a batch; return [slots, columns, hidden]."""
        last = self._module.embed_tokens.num_embeddings - 1
        outputs: Tensor = self._module(
            batch.token_ids.clamp(max=last),
            batch.states,
            batch.positions,
            attention_mask=batch.mask,
            **{GENERATE_CACHE: self.cache},
        )
        return outputs

    def project(self, outputs: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return logits over the draft vocabulary, and the token id of each column."""
        logits = self._module.project(outputs)
        # Rows that only pad the head's vocabulary do not stand for tokens of the target.
        if self._token_ids is None:
            logits = logits[:, : self._vocab_size]
        return logits, self._token_ids


def default_layers(target: PreTrainedModel) -> tuple[int, ...]:
    """Return the layers whose inputs a head reads if its configuration lists none."""
    count = target.config.get_text_config(decoder=True).num_hidden_layers
    return EAGLE3_FIRST_LAYER, count // 2, count - EAGLE3_LAST_LAYER_FROM_END
