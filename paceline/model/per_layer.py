"""Read configuration values that may differ between layers, as in Gemma 4.

transformers raises an error if such a value is read from the whole configuration.
"""

from __future__ import annotations

from typing import Any

from transformers import PretrainedConfig

from paceline.errors import UnsupportedModelError


def layer_values(config: PretrainedConfig, name: str) -> list[Any]:
    """Return an attribute's value in every decoder layer; None in layers that lack it."""
    if getattr(config, "is_heterogeneous", False):
        return [getattr(layer_config, name, None) for layer_config in config.per_layer_config]
    return [getattr(config, name, None)] * config.num_hidden_layers


def value_of(config: PretrainedConfig, name: str) -> Any:
    """Return the value that all layers share, or a list with one value per layer."""
    values = layer_values(config, name)
    return values if any(value != values[0] for value in values) else values[0]


def key_shapes(config: PretrainedConfig) -> list[tuple[int, int]]:
    """Return the number and size of key heads for each layer that has its own keys.

    Layers that share the keys of earlier layers are omitted. The list is empty if the
    configuration does not specify the numbers and sizes.
    """
    # The last layers share the keys of earlier layers.
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


def common_value(config: PretrainedConfig, name: str, model: str) -> int | None:
    """Return an attribute's value, which must not differ between layers.

    Layers with full attention may lack the attribute. The result is None if all layers lack it.

    Args:
        config: Configuration of the text model.
        name: Name of the attribute, which is a window or chunk size in tokens.
        model: Name of the model, for error messages.
    Raises:
        UnsupportedModelError: The layers have several values, so one attention mask per kind of
            layer is not enough.
    """
    sizes = set(layer_values(config, name))
    if getattr(config, "layer_types", None) is not None:
        sizes.discard(None)  # layers with full attention
    if len(sizes) > 1:
        raise UnsupportedModelError(
            f"{model} has layers that differ in {name} ({', '.join(map(str, sizes))}); expected one"
            " value for all of them. Use model.generate for this model."
        )
    return sizes.pop() if sizes else None
