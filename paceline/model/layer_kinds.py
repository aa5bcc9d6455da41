"""Determine from a configuration which layers have attention or recurrent states."""

from __future__ import annotations

from dataclasses import dataclass

from transformers import DynamicCache, PretrainedConfig, PreTrainedModel
from transformers.cache_utils import CacheLayerMixin, LinearAttentionLayer

from paceline.kv_cache.state_layer import StateKind

MASKABLE = {"full_attention", "sliding_attention", "chunked_attention"}
"""Kinds of attention layers, by their names in a configuration's `layer_types`."""
STATELESS = {"mlp", "moe"}
"""Kinds of layers that store nothing in the cache."""

_HYBRID = {"hybrid": "full_attention", "hybrid_sliding": "sliding_attention"}
"""Kinds of layers with attention and recurrent states, mapped to their kind of attention."""

RECURRENT = {"linear_attention", "conv"}
"""Kinds of layers with recurrent states but without attention."""


@dataclass(frozen=True, slots=True)
class LayerKinds:
    """The kinds of layers in one model.

    Attributes:
        attention: Kinds of attention in the model, in alphabetical order; empty for a model without
            attention.
        masks: For each kind of layer, the kind of attention mask that these layers receive; None
            if they receive no mask.
        states: Kind of recurrent state in each recurrent layer, by layer index.
        num_attention: Number of layers with attention.
    """

    attention: tuple[str, ...]
    masks: dict[str, str | None]
    states: dict[int, StateKind]
    num_attention: int

    @staticmethod
    def of(config: PretrainedConfig, only_kind: str) -> LayerKinds:
        """Read the kinds of a text model's layers from its configuration.

        Args:
            config: Configuration of the text model. All layer kinds that it lists must be known
                (`known_kinds`).
            only_kind: Kind of all layers if the configuration does not list the kinds.
        """
        kinds = list(getattr(config, "layer_types", None) or [only_kind])
        attention = [_HYBRID.get(kind, kind) for kind in kinds if kind in MASKABLE | {*_HYBRID}]
        masks: dict[str, str | None] = {kind: kind for kind in attention}
        if not keeps_states(config):
            return LayerKinds(tuple(sorted(masks)), masks, {}, len(attention))
        masks |= {kind: _HYBRID[kind] for kind in kinds if kind in _HYBRID}
        masks |= dict.fromkeys(RECURRENT | STATELESS)
        return LayerKinds(tuple(sorted(set(attention))), masks, _states(config), len(attention))


def known_kinds(config: PretrainedConfig) -> bool:
    """Return whether each layer is of a known kind: attention, recurrent or stateless."""
    kinds = set(getattr(config, "layer_types", None) or ())
    return bool(kinds) and kinds <= MASKABLE | {*_HYBRID} | RECURRENT | STATELESS


def keeps_states(config: PretrainedConfig) -> bool:
    """Return whether any layer stores recurrent states in transformers' cache layers."""
    kinds = set(getattr(config, "layer_types", None) or ())
    return not kinds.isdisjoint(RECURRENT | {*_HYBRID})


def states_of(model: PreTrainedModel) -> dict[int, StateKind]:
    """Return the kind of recurrent state in each recurrent layer, by layer index."""
    config = model.config.get_text_config(decoder=True)
    return _states(config) if known_kinds(config) and keeps_states(config) else {}


def _states(config: PretrainedConfig) -> dict[int, StateKind]:
    # transformers 5.19 also has a `LinearAttentionLayer` for each stateless layer.
    return {
        index: StateKind(layer.number_of_states, isinstance(layer, CacheLayerMixin))
        for index, layer in enumerate(DynamicCache(config=config).layers)
        if isinstance(layer, LinearAttentionLayer) and config.layer_types[index] not in STATELESS
    }
