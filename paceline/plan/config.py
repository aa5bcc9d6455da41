"""Read the dimensions of a model from its config.json, without weights or torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline import demo
from paceline.errors import ConfigError, did_you_mean
from paceline.plan.model_settings import (
    BITS_OF_METHOD,
    BYTES_OF_DTYPE,
    DENSE_MATRICES,
    EXPERT_SIZE_FIELDS,
    FULL_ATTENTION_EVERY,
    GATED,
    REQUIRES_HEAD_DIM,
    TIED_BY_DEFAULT,
)
from paceline.plan.roofline import Matmul, Shapes
from paceline.util.files import parse_json
from paceline.util.text_files import read_text


@dataclass(frozen=True, slots=True)
class ModelCard:
    """The properties of a model that a plan needs.

    Attributes:
        name: Name of the model that the caller passed.
        model_type: Architecture, as in config.json.
        dtype: Data type of activations and KV cache.
        context_length: Maximum number of tokens; None if the config has no limit.
        shapes: Matrix products and attention heads.
        embedding: Number of weights in the input embedding; 0 if it is tied to the LM head.
    """

    name: str
    model_type: str
    dtype: str
    context_length: int | None
    shapes: Shapes
    embedding: int

    @property
    def parameters(self) -> int:
        """Return the number of matrix and embedding weights, without norms and biases."""
        return self.embedding + sum(matmul.weights for matmul in self.shapes.matmuls)

    @property
    def weight_bytes(self) -> float:
        """Return the size of the weight matrices and the embedding, in bytes."""
        return self.embedding * self.shapes.width + self.shapes.weight_bytes


def read_card(model: str, dtype: str = "auto", weight_bits: int | None = None) -> ModelCard:
    """Read the dimensions of a model.

    Args:
        model: Directory, config.json, GGUF file or built-in model name.
        dtype: Data type of activations and KV cache; "auto" uses the value in the config.
        weight_bits: Number of bits per weight in all layers except the LM head: 4, 8 or 16.
            Computations use `dtype`. None uses the value in the config.
    Raises:
        ConfigError: The config does not exist, a field is missing, or the architecture is not
            supported.
    """
    if weight_bits not in (None, 4, 8, 16):
        raise ConfigError(f"plan: weight_bits: got {weight_bits}; expected 4, 8 or 16.")
    config = _load(model)
    config = {**config, **config.get("text_config", {})}
    kind = _supported_type(model, config)
    dtype = _dtype(model, config, dtype)
    read = _FieldReader(model, config)
    hidden, layers = read("hidden_size"), read("num_hidden_layers")
    heads = read("num_attention_heads")
    size = config.get("head_dim")
    size = size or (read("head_dim") if kind in REQUIRES_HEAD_DIM else hidden // heads)
    kv_heads = config.get("num_key_value_heads") or heads
    bits = weight_bits if weight_bits is not None else _bits(model, config)
    width = None if bits is None else bits / 8
    attention = _attention_sizes(hidden, heads * size, kv_heads * size)
    matmuls = [Matmul(*projection, layers, width=width) for projection in attention]
    feed_forward = _experts if kind in EXPERT_SIZE_FIELDS else _dense
    matmuls += feed_forward(read, kind, hidden, layers, width)
    vocabulary = read("vocab_size")
    tied = config.get("tie_word_embeddings", kind in TIED_BY_DEFAULT)
    window, windowed = _windows(model, config, kind, layers)
    shapes = Shapes(
        hidden,
        layers,
        heads,
        kv_heads,
        size,
        BYTES_OF_DTYPE[dtype],
        (*matmuls, Matmul("lm_head", hidden, vocabulary, 1)),
        window,
        windowed,
    )
    embedding = 0 if tied else hidden * vocabulary
    return ModelCard(model, kind, dtype, config.get("max_position_embeddings"), shapes, embedding)


def _attention_sizes(hidden: int, queries: int, keys: int) -> tuple[tuple[str, int, int], ...]:
    """Return the name, input size and output size of each attention matrix."""
    return (
        ("q_proj", hidden, queries),
        ("k_proj", hidden, keys),
        ("v_proj", hidden, keys),
        ("o_proj", queries, hidden),
    )


def _supported_type(model: str, config: Mapping[str, Any]) -> str:
    """Return the model type, checking that its sizes can be read."""
    kind = str(config.get("model_type"))
    if kind not in DENSE_MATRICES and kind not in EXPERT_SIZE_FIELDS:
        hint = did_you_mean(kind, DENSE_MATRICES | EXPERT_SIZE_FIELDS)
        raise ConfigError(f"plan: model {model!r}: model_type {kind!r} is not supported.{hint}")
    return kind


class _FieldReader:
    """Reads required fields that are positive integers."""

    def __init__(self, model: str, config: Mapping[str, Any]) -> None:
        self._model, self.config = model, config

    def __call__(self, name: str) -> int:
        value = self.config.get(name)
        if not isinstance(value, int) or value < 1:
            raise ConfigError(
                f"plan: model {self._model!r}: {name}: got"
                f" {'nothing' if value is None else repr(value)}; expected a whole number of at"
                " least 1 in config.json. Add it."
            )
        return value


def _load(model: str) -> dict[str, Any]:
    source = Path(demo.target_of(model))
    if source.suffix.lower() == ".gguf":
        from paceline.model.gguf import unpacked

        source = unpacked(source)
    path = source / "config.json" if source.is_dir() else source
    try:
        config = parse_json(read_text(path))
    except FileNotFoundError as error:
        raise ConfigError(
            f"plan: model: there is no config.json at {model!r}. Name a directory with one, the"
            f" file itself, {demo.NAME!r} or {demo.SMOLLM2!r}. Fetch the config.json of a hub model"
            " first."
        ) from error
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"plan: model {model!r}: its config.json cannot be read: {error}. Correct it."
        ) from error
    if not isinstance(config, dict):
        raise ConfigError(
            f"plan: model {model!r}: got a {type(config).__name__}; expected a config.json with"
            " fields. Correct it."
        )
    return config


def _dtype(model: str, config: Mapping[str, Any], wanted: str) -> str:
    chosen = wanted if wanted != "auto" else config.get("dtype") or config.get("torch_dtype")
    if chosen is None:
        raise ConfigError(
            f"plan: model {model!r}: its config.json names no dtype. Give one with --dtype."
        )
    if chosen not in BYTES_OF_DTYPE:
        hint = did_you_mean(str(chosen), {"auto", *BYTES_OF_DTYPE})
        raise ConfigError(f"plan: dtype: got {chosen!r}.{hint}")
    return str(chosen)


def _dense(
    read: _FieldReader, kind: str, hidden: int, layers: int, width: float | None
) -> list[Matmul]:
    inner = read("intermediate_size")
    names = ("gate_proj", "up_proj") if DENSE_MATRICES[kind] == GATED else ("up_proj",)
    return [
        *(Matmul(name, hidden, inner, layers, width=width) for name in names),
        Matmul("down_proj", inner, hidden, layers, width=width),
    ]


def _experts(
    read: _FieldReader, kind: str, hidden: int, layers: int, width: float | None
) -> list[Matmul]:
    """Return the matrix products of the router, the experts and any shared expert."""
    if read.config.get("mlp_only_layers") or read.config.get("decoder_sparse_step", 1) != 1:
        raise ConfigError(
            f"plan: model_type {kind!r}: models with dense layers between layers with experts"
            " (mlp_only_layers, decoder_sparse_step) are not supported. Use another model."
        )
    number = "num_local_experts" if "num_local_experts" in read.config else "num_experts"
    active, inner = read("num_experts_per_tok"), read(EXPERT_SIZE_FIELDS[kind])
    count = read(number)
    matmuls = [Matmul("router", hidden, count, layers)]
    for name, inputs, outputs in (
        ("gate_proj", hidden, inner),
        ("up_proj", hidden, inner),
        ("down_proj", inner, hidden),
    ):
        matmuls.append(Matmul(f"experts {name}", inputs, outputs, layers, count, active, width))
    if kind == "qwen2_moe":
        shared = read("shared_expert_intermediate_size")
        matmuls += [
            Matmul("shared gate", hidden, 1, layers),
            Matmul("shared gate_proj", hidden, shared, layers, width=width),
            Matmul("shared up_proj", hidden, shared, layers, width=width),
            Matmul("shared down_proj", shared, hidden, layers, width=width),
        ]
    return matmuls


def _windows(model: str, config: Mapping[str, Any], kind: str, layers: int) -> tuple[int, int]:
    """Return the window size of sliding-attention layers, and their number."""
    kinds = config.get("layer_types") or []
    unknown = set(kinds) - {"full_attention", "sliding_attention"}
    if unknown:
        raise ConfigError(
            f"plan: model {model!r}: layers of {', '.join(sorted(unknown))} are not supported. Use"
            " another model."
        )
    window = config.get("sliding_window")
    if not window or (kind.startswith("qwen") and not config.get("use_sliding_window")):
        return 0, 0
    if kinds:
        return window, kinds.count("sliding_attention")
    every = config.get("sliding_window_pattern") or FULL_ATTENTION_EVERY.get(kind)
    if every:
        return window, layers - layers // every
    return window, max(0, layers - config.get("max_window_layers", 0)) if kind.startswith(
        "qwen"
    ) else layers


def _bits(model: str, config: Mapping[str, Any]) -> int | None:
    """Return the number of bits per weight, or None if weights are not quantised."""
    quantisation = config.get("quantization_config")
    if not quantisation:
        return None
    method = quantisation.get("quant_method")
    bits = quantisation.get("bits") or BITS_OF_METHOD.get(str(method))
    bits = bits or (
        4 if quantisation.get("load_in_4bit") else 8 if quantisation.get("load_in_8bit") else None
    )
    if bits is None:
        raise ConfigError(
            f"plan: model {model!r}: its quantization_config of {method!r} does not give the bits"
            " of a weight. Give --weight-bits."
        )
    return int(bits)
