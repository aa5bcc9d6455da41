"""What a transformers model can do: which masks it takes, how long its context is, whether it
can be verified at all.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedModel

from paceline.attention import BY_POSITION, takes_tree_attention, why_not_by_position
from paceline.core.attention_metadata import VisibleRanges, address_of, mark
from paceline.errors import ConfigError, UnsupportedModelError
from paceline.model.forward_arguments import forward_parameters
from paceline.model.padded_batch import PaddedBatch
from paceline.model.per_layer import key_shapes, reach
from paceline.model.ragged_batch import RaggedBatch
from paceline.model.refusals import refuse_unsupported
from paceline.model.rotary import restart_length, switch_lengths

Masks = Tensor | dict[str, Tensor] | None  # as a model takes them
_UNBOUNDED = 1 << 30


@dataclass(frozen=True, slots=True)
class Architecture:
    """Facts about one loaded model.

    Attributes:
        layers: decoder layers; vocab_size: rows of the LM head; context_length: most positions.
        layer_kinds: the attention kinds that occur.
        mask_per_kind: the model takes a dict of masks by kind, else one tensor.
        window, chunk: reach of sliding and of chunked attention, in positions.
        takes_masks: a 4-D mask and position ids decide what is seen; false where cache slots do
            (ALiBi, no position ids).
        float_masks: masks are added to the scores (eager) instead of selecting (sdpa).
        tree_attention: masked forwards may use our attention by SDPA.
        by_position: every forward uses our attention by position.
        position_bytes: about what keys and values of one token take in all layers; 0 = the
            configuration does not say.
        switch_lengths: text lengths beyond which the rotary frequencies are others.
        restart_length: the one beyond which a growing text is fed anew, as `generate` of the model
            does; None = never.
    """

    name: str
    layers: int
    vocab_size: int
    context_length: int
    layer_kinds: tuple[str, ...]
    mask_per_kind: bool
    window: int | None
    chunk: int | None
    takes_masks: bool
    takes_position_ids: bool
    takes_logits_to_keep: bool
    float_masks: bool
    tree_attention: bool
    by_position: bool
    dtype: torch.dtype
    position_bytes: int
    switch_lengths: tuple[int, ...]
    restart_length: int | None

    @property
    def takes_trees(self) -> bool:
        """Whether branching trees can be verified in one forward."""
        return self.takes_masks

    @staticmethod
    def from_model(
        model: PreTrainedModel, by_position: bool = False, chains: bool = False
    ) -> Architecture:
        """Read the facts off a model.

        Args:
            by_position: it is to use our attention by position, as it does anyway when that is its
                attention implementation.
            chains: masks do not decide what it sees, whatever its forward takes.
        Raises:
            UnsupportedModelError: encoder-decoder, recurrent or index-sparse models; those that
                cannot attend by position, if they are to.
            ConfigError: an attention implementation that takes no 4-D mask.
        """
        config = model.config.get_text_config(decoder=True)
        name = type(model).__name__
        refuse_unsupported(model, config, name)
        kinds = getattr(config, "layer_types", None)
        window, chunk = (
            reach(config, key, name) for key in ("sliding_window", "attention_chunk_size")
        )
        by_slot = chains or _uses_alibi(config)
        single = (
            "sliding_attention" if window else "chunked_attention" if chunk else "full_attention"
        )
        implementation = model.config._attn_implementation or "eager"
        by_position = by_position or implementation == BY_POSITION
        if implementation not in ("sdpa", "eager", BY_POSITION) and not by_slot:
            raise ConfigError(
                f"{name}: got attention implementation {implementation!r}, which takes no tree"
                " mask; expected 'sdpa' or 'eager'. Call model.set_attn_implementation('sdpa')"
                " first."
            )
        obstacle = why_not_by_position(model) if by_position else None
        if obstacle is not None:
            raise UnsupportedModelError(
                f"{name} cannot be batch-invariant: {obstacle}. Set batch_invariant to false."
            )
        accepted = forward_parameters(model)
        context = (
            getattr(config, key, None)
            for key in ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")
        )
        return Architecture(
            name=name,
            layers=config.num_hidden_layers,
            vocab_size=config.vocab_size,
            context_length=next((length for length in context if length), _UNBOUNDED),
            layer_kinds=tuple(sorted(set(kinds))) if kinds else (single,),
            mask_per_kind=kinds is not None,
            window=window,
            chunk=chunk,
            takes_masks=not by_slot and "position_ids" in accepted,
            takes_position_ids="position_ids" in accepted,
            takes_logits_to_keep="logits_to_keep" in accepted,
            float_masks=implementation == "eager" and not by_position,
            tree_attention=takes_tree_attention(model) and not by_slot,
            by_position=by_position,
            dtype=model.dtype,
            position_bytes=2
            * sum(heads * dim for heads, dim in key_shapes(config))
            * model.dtype.itemsize,
            switch_lengths=switch_lengths(config),
            restart_length=restart_length(model, config),
        )

    def marks(
        self, packing: RaggedBatch, visible: int, device: torch.device
    ) -> tuple[Masks, dict[int, VisibleRanges]]:
        """The model's `attention_mask` for sequences that are packed, which says nothing, and
        what it stands for (`AttentionMetadata`).
        """
        masks: dict[str, Tensor] = {}
        marks: dict[int, VisibleRanges] = {}
        for kind in self.layer_kinds:
            masks[kind] = mark(len(packing.token_ids), visible, device)
            marks[address_of(masks[kind])] = packing.visible(*self._reach(kind))
        return masks if self.mask_per_kind else next(iter(masks.values())), marks

    def _reach(self, kind: str) -> tuple[int | None, int | None]:
        """Window and chunk of a kind of layers."""
        return (
            self.window if kind == "sliding_attention" else None,
            self.chunk if kind == "chunked_attention" else None,
        )

    def attention_mask(self, layout: PaddedBatch, visible: int, device: torch.device) -> Masks:
        """The model's `attention_mask` for one forward; None where plain causal attention over
        the cache is meant.
        """
        if not self.takes_masks or (layout.trivial and self.layer_kinds == ("full_attention",)):
            return None
        masks = {
            kind: self._one_mask(layout, visible, device, *self._reach(kind))
            for kind in self.layer_kinds
        }
        return masks if self.mask_per_kind else next(iter(masks.values()))

    def _one_mask(
        self,
        layout: PaddedBatch,
        visible: int,
        device: torch.device,
        window: int | None,
        chunk: int | None,
    ) -> Tensor:
        mask = torch.from_numpy(layout.visible_mask(visible, window, chunk))[:, None].to(
            device, non_blocking=True
        )
        if self.float_masks:
            mask = torch.zeros(mask.shape, dtype=self.dtype, device=device).masked_fill_(
                ~mask, torch.finfo(self.dtype).min
            )
        return mask


def _uses_alibi(config: PretrainedConfig) -> bool:
    attention = getattr(config, "attn_config", None)
    return config.model_type in ("bloom", "mpt") or bool(
        getattr(config, "alibi", False) or getattr(attention, "alibi", False)
    )
