"""Describe a transformers model: masks, context length, support for draft trees."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedModel

from paceline.attention import BY_POSITION, takes_tree_attention, why_not_by_position
from paceline.attention.reach import Reach
from paceline.backend.attention_metadata import VisibleRanges, mask_address, stand_in_mask
from paceline.errors import ConfigError, UnsupportedModelError
from paceline.kv_cache.state_layer import StateKind
from paceline.model.forward_arguments import forward_parameters
from paceline.model.layer_kinds import LayerKinds
from paceline.model.mixers.seam import convolutions_of, mixers_of
from paceline.model.mixers.upstream import clamps_prompts
from paceline.model.padded_batch import PaddedBatch
from paceline.model.per_layer import common_value, key_shapes
from paceline.model.ragged_batch import RaggedBatch
from paceline.model.refusals import refuse_unsupported
from paceline.model.rotary import restart_length, switch_lengths
from paceline.model.settings import UNBOUNDED_CONTEXT

# A model's `attention_mask` argument: one tensor, one tensor per layer kind, or None.
Masks = Tensor | dict[str, Tensor | None] | None


@dataclass(frozen=True, slots=True)
class Architecture:
    """Properties of a loaded model that determine how paceline runs it.

    Attributes:
        name: Class name of the model, for error messages.
        layers: Number of decoder layers.
        vocab_size: Number of rows of the LM head.
        context_length: Maximum number of positions.
        layer_kinds: Kinds of attention in the model, in alphabetical order; empty for a model
            without attention.
        masks: For each kind of layer, the kind of attention mask that these layers receive; None
            if they receive no mask.
        states: Kind of recurrent state in each recurrent layer, by layer index.
        has_chain_mixers: True if the model verifies only chains (draft trees without branches) and
            its only recurrent states are those of short convolutions.
        clamps_prompts: Whether recurrent layers limit step sizes in prompts, but not while
            decoding. If so, states that were computed while decoding cannot be reused for a prompt.
        mask_per_kind: Whether the model's `attention_mask` is a dict with one mask per kind of
            attention, instead of one tensor.
        window: Size of the attention window, including the query's own position; None if no layer
            has a window.
        attention_chunk: Number of positions per chunk in chunked attention; None if no layer uses
            chunked attention.
        takes_masks: Whether a 4-D mask and position ids determine which tokens each token sees. If
            not, the visible tokens depend on the order of the tokens in the cache, as in models
            with ALiBi or without position ids.
        takes_position_ids: Whether the forward method accepts `position_ids`.
        takes_logits_to_keep: Whether the forward method accepts `logits_to_keep`.
        float_masks: Whether masks contain numbers to be added to the attention scores (eager),
            rather than Booleans (SDPA).
        tree_attention: Whether masked forward passes may use paceline's tree attention.
        by_position: Whether every forward pass uses paceline's batch-invariant attention.
        dtype: Data type of the weights.
        position_bytes: Approximate size of one token's keys and values in all layers, in bytes; 0
            if the configuration does not specify it.
        switch_lengths: Text lengths, in tokens, beyond which the rotary frequencies change; in
            ascending order.
        restart_length: Text length, in tokens. Once a text grows beyond this length, all of its
            tokens are recomputed, as in the model's `generate`. None means no recomputation.
    """

    name: str
    layers: int
    vocab_size: int
    context_length: int
    layer_kinds: tuple[str, ...]
    masks: dict[str, str | None]
    states: dict[int, StateKind]
    has_chain_mixers: bool
    clamps_prompts: bool
    mask_per_kind: bool
    window: int | None
    attention_chunk: int | None
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
        """True if one forward pass can verify a branching draft tree."""
        return self.takes_masks

    @staticmethod
    def from_model(
        model: PreTrainedModel, by_position: bool = False, chains: bool = False
    ) -> Architecture:
        """Read the properties of a model and its configuration.

        Args:
            model: Loaded model.
            by_position: Whether to use paceline's batch-invariant attention kernels. A model whose
                configuration names these kernels always uses them.
            chains: Whether to verify only chains, without masks, even if the `forward` method
                accepts masks.
        Raises:
            UnsupportedModelError: The model cannot be verified losslessly (`refuse_unsupported`),
                or it does not support the requested kernels.
            ConfigError: The attention implementation does not accept a 4-D mask.
        """
        config = model.config.get_text_config(decoder=True)
        name = model.__class__.__name__  # transformers may pass a proxy
        refuse_unsupported(model, config, name)
        kinds = getattr(config, "layer_types", None)
        window, attention_chunk = (
            common_value(config, key, name) for key in ("sliding_window", "attention_chunk_size")
        )
        by_slot = chains or _uses_alibi(config)
        implementation = model.config._attn_implementation or "eager"
        by_position = by_position or implementation == BY_POSITION
        _refuse_attention(model, implementation, by_slot, by_position)
        accepted = forward_parameters(model)
        layers = LayerKinds.of(config, _only_kind(window, attention_chunk))
        mixers = mixers_of(model, layers.states)
        by_slot = by_slot or len(mixers) < len(layers.states)
        takes_positions = "position_ids" in accepted or not layers.attention
        return Architecture(
            name=name,
            layers=config.num_hidden_layers,
            vocab_size=config.vocab_size,
            context_length=_context_length(config),
            layer_kinds=layers.attention,
            masks=layers.masks,
            states=layers.states,
            has_chain_mixers=not mixers and bool(convolutions_of(model, layers.states)),
            clamps_prompts=any(map(clamps_prompts, mixers.values())),
            mask_per_kind=kinds is not None,
            window=window,
            attention_chunk=attention_chunk,
            takes_masks=not by_slot and takes_positions,
            takes_position_ids="position_ids" in accepted,
            takes_logits_to_keep="logits_to_keep" in accepted,
            float_masks=implementation == "eager" and not by_position,
            tree_attention=takes_tree_attention(model) and not by_slot,
            by_position=by_position,
            dtype=model.dtype,
            position_bytes=_position_bytes(config, model.dtype, layers),
            switch_lengths=switch_lengths(config),
            restart_length=restart_length(model, config),
        )

    def ragged_masks(
        self, packing: RaggedBatch, visible: int, device: torch.device
    ) -> tuple[Masks, dict[int, VisibleRanges]]:
        """Return placeholder masks for a ragged batch, and the visible keys of each mask.

        The model receives the masks as its `attention_mask`, but nothing reads the values in the
        masks. Instead, the attention kernel looks up the ranges of visible keys by the memory
        address of the mask (`AttentionMetadata`).

        Args:
            packing: Ragged batch.
            visible: Number of cache positions in use.
            device: Device of the masks.
        """
        masks: dict[str, Tensor] = {}
        visible_ranges: dict[int, VisibleRanges] = {}
        for kind in self.layer_kinds:
            masks[kind] = stand_in_mask(len(packing.token_ids), visible, device)
            visible_ranges[mask_address(masks[kind])] = packing.visible(self._reach(kind))
        return self._argument(masks), visible_ranges

    @property
    def reaches(self) -> dict[str, Reach]:
        """Return how far back each kind of layer attends."""
        return {kind: self._reach(kind) for kind in self.layer_kinds}

    def _reach(self, kind: str) -> Reach:
        return Reach(
            window=self.window if kind == "sliding_attention" else None,
            chunk=self.attention_chunk if kind == "chunked_attention" else None,
        )

    def attention_mask(self, layout: PaddedBatch, visible: int, device: torch.device) -> Masks:
        """Return the model's `attention_mask` for a padded forward pass.

        A result of None means plain causal attention over the cache.

        Args:
            layout: Padded batch.
            visible: Number of cache positions in use.
            device: Device of the mask.
        """
        no_mask = layout.trivial and self.layer_kinds == ("full_attention",) and not self.states
        if not self.takes_masks or not self.layer_kinds or no_mask:
            return None
        masks = {
            kind: self._mask_for_kind(layout, visible, device, self._reach(kind))
            for kind in self.layer_kinds
        }
        return self._argument(masks)

    def _argument(self, masks: dict[str, Tensor]) -> Masks:
        """Build the model's `attention_mask` from one mask per kind of attention."""
        if not self.mask_per_kind or not masks:
            return next(iter(masks.values()), None)
        return {
            kind: None if attention is None else masks[attention]
            for kind, attention in self.masks.items()
        }

    def _mask_for_kind(
        self, layout: PaddedBatch, visible: int, device: torch.device, reach: Reach
    ) -> Tensor:
        mask = torch.from_numpy(layout.visible_mask(visible, reach))[:, None].to(
            device, non_blocking=True
        )
        if self.float_masks:
            mask = torch.zeros(mask.shape, dtype=self.dtype, device=device).masked_fill_(
                ~mask, torch.finfo(self.dtype).min
            )
        return mask


def _refuse_attention(
    model: PreTrainedModel, implementation: str, by_slot: bool, by_position: bool
) -> None:
    name = type(model).__name__
    if implementation not in ("sdpa", "eager", BY_POSITION) and not by_slot:
        raise ConfigError(
            f"{name}: got attention implementation {implementation!r}, which accepts no tree"
            " mask; expected 'sdpa' or 'eager'. Call model.set_attn_implementation('sdpa')"
            " first."
        )
    obstacle = why_not_by_position(model) if by_position else None
    if obstacle is not None:
        raise UnsupportedModelError(
            f"{name} cannot be batch-invariant: {obstacle}. Set \0batch_invariant\0 to false."
        )


def _context_length(config: PretrainedConfig) -> int:
    names = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")
    lengths = (getattr(config, name, None) for name in names)
    return next((length for length in lengths if length), UNBOUNDED_CONTEXT)


def _only_kind(window: int | None, attention_chunk: int | None) -> str:
    if window:
        return "sliding_attention"
    return "chunked_attention" if attention_chunk else "full_attention"


def _position_bytes(config: PretrainedConfig, dtype: torch.dtype, layers: LayerKinds) -> int:
    shapes = key_shapes(config)
    if layers.states:
        shapes = shapes[: layers.num_attention]  # the layers of such models have equal heads
    return 2 * sum(heads * dim for heads, dim in shapes) * dtype.itemsize


def _uses_alibi(config: PretrainedConfig) -> bool:
    attention = getattr(config, "attn_config", None)
    return config.model_type in ("bloom", "mpt") or bool(
        getattr(config, "alibi", False) or getattr(attention, "alibi", False)
    )
