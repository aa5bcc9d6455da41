"""Values of a configuration whose layers differ, as those of Gemma 4: transformers raises where
the whole model is asked.
"""

from __future__ import annotations

from typing import Any

from transformers import PretrainedConfig

from paceline.errors import UnsupportedModelError


def layer_values(config: PretrainedConfig, name: str) -> list[Any]:
    """Return one value per decoder layer; None for each layer that has no such attribute."""
    if getattr(config, "is_heterogeneous", False):
        return [getattr(one, name, None) for one in config.per_layer_config]
    return [getattr(config, name, None)] * config.num_hidden_layers


def value_of(config: PretrainedConfig, name: str) -> Any:
    """Return the value that all layers have; a list of one per layer where they differ."""
    values = layer_values(config, name)
    return values if any(value != values[0] for value in values) else values[0]


def key_shapes(config: PretrainedConfig) -> list[tuple[int, int]]:
    """Return key heads and their size for each layer that keeps keys of its own; none where the
    configuration does not say.
    """
    # the last ones share
    count = config.num_hidden_layers - (getattr(config, "num_kv_shared_layers", None) or 0)
    names = ("num_attention_heads", "num_key_value_heads", "hidden_size", "head_dim")
    shapes = []
    for queries, heads, hidden, dim in list(
        zip(*(layer_values(config, name) for name in names), strict=True)
    )[:count]:
        heads = heads or queries
        if dim is None and isinstance(hidden, int) and isinstance(queries, int):
            dim = hidden // queries
        if not isinstance(heads, int) or not isinstance(dim, int):
            return []
        shapes.append((heads, dim))
    return shapes


def reach(config: PretrainedConfig, name: str, model: str) -> int | None:
    """Return the size of the windows or chunks that layers attend in; None where no layer has any.

    Args:
        name: of the attribute. model: what an error calls the model.
    Raises:
        UnsupportedModelError: one mask per kind of layers is not enough, since layers of a kind
            differ.
    """
    sizes = set(layer_values(config, name))
    if getattr(config, "layer_types", None) is not None:
        sizes.discard(None)  # of layers with full attention
    if len(sizes) > 1:
        raise UnsupportedModelError(
            f"{model} has layers that differ in {name} ({', '.join(map(str, sizes))}); expected one"
            " value for all of them. Use model.generate for this model."
        )
    return sizes.pop() if sizes else None
