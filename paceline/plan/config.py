"""The sizes of a model out of its config.json: what the roofline needs, without weights and without torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline import demo
from paceline.common.files import parse_json
from paceline.common.text_files import read_text
from paceline.errors import ConfigError, did_you_mean
from paceline.plan.roofline import Matmul, Shapes

_WIDTHS = {"float32": 4, "bfloat16": 2, "float16": 2}
_GATED, _PLAIN = 3, 2  # matrices of a feed-forward block
# Decoders whose layers are four matrices of attention and a feed-forward block; model type -> matrices of that block.
_DENSE = {
    **dict.fromkeys(("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "phi3"), _GATED),
    **dict.fromkeys(("olmo", "olmo2", "olmo3", "granite", "smollm3", "stablelm", "cohere", "cohere2"), _GATED),
    **dict.fromkeys(("phi", "gpt_neox", "starcoder2"), _PLAIN),
}
# Likewise with experts in place of that block; model type -> the field of their size.
_EXPERTS = {
    **dict.fromkeys(("mixtral", "granitemoe", "olmoe"), "intermediate_size"),
    **dict.fromkeys(("qwen2_moe", "qwen3_moe"), "moe_intermediate_size"),
}
_TIED = ("gemma", "gemma2", "gemma3_text", "cohere", "cohere2", "starcoder2")  # unless their config says otherwise
_NAMES_HEAD_SIZE = ("gemma", "gemma2", "gemma3_text", "qwen3", "qwen3_moe", "cohere2")  # it is not hidden / heads there
_FULL_EVERY = {"gemma2": 2, "gemma3_text": 6, "cohere2": 4}  # every n-th layer is full, the others slide
_BITS_OF_METHOD = {"fp8": 8, "fbgemm_fp8": 8, "mxfp4": 4}


@dataclass(frozen=True, slots=True)
class ModelCard:
    """What a plan needs to know about a model.

    Attributes:
        name: as it was asked for. dtype: of activations and cache.
        context_length: most tokens; None = the config does not say.
        shapes: its matrix products and heads. embedding: numbers in the input embedding that no matrix product has.
    """

    name: str
    model_type: str
    dtype: str
    context_length: int | None
    shapes: Shapes
    embedding: int

    @property
    def parameters(self) -> int:
        """Numbers in matrices and embedding; norms and biases are left out."""
        return self.embedding + sum(one.weights for one in self.shapes.matmuls)

    @property
    def weight_bytes(self) -> float:
        """Bytes of these."""
        return self.embedding * self.shapes.width + self.shapes.weight_bytes


def read_card(model: str, dtype: str = "auto", weight_bits: int | None = None) -> ModelCard:
    """Read the sizes of a model.

    Args:
        model: a directory, a config.json, a GGUF file, or an embedded word.
        dtype: of activations and cache; "auto" = the config's.
        weight_bits: of the weights of all layers (not of the LM head), the arithmetic staying as it is; None = the config's.
    Raises:
        ConfigError: no such config, a field that is missing, or an architecture that is not modelled.
    """
    if weight_bits not in (None, 4, 8, 16):
        raise ConfigError(f"plan: weight_bits: got {weight_bits}; expected 4, 8 or 16.")
    config = _load(model)
    config = {**config, **config.get("text_config", {})}
    kind = str(config.get("model_type"))
    if kind not in _DENSE and kind not in _EXPERTS:
        known = did_you_mean(kind, _DENSE | _EXPERTS)
        raise ConfigError(f"plan: model {model!r}: got model_type {kind!r}, whose layers are not modelled.{known}")
    dtype = _dtype(model, config, dtype)
    read = _Reader(model, config)
    hidden, layers, heads = read("hidden_size"), read("num_hidden_layers"), read("num_attention_heads")
    size = config.get("head_dim") or (read("head_dim") if kind in _NAMES_HEAD_SIZE else hidden // heads)
    kv_heads = config.get("num_key_value_heads") or heads
    bits = weight_bits if weight_bits is not None else _bits(model, config)
    width = None if bits is None else bits / 8
    attention = (("q_proj", hidden, heads * size), ("k_proj", hidden, kv_heads * size), ("v_proj", hidden, kv_heads * size))
    matmuls = [Matmul(*one, layers, width=width) for one in (*attention, ("o_proj", heads * size, hidden))]
    matmuls += _experts(read, kind, hidden, layers, width) if kind in _EXPERTS else _dense(read, kind, hidden, layers, width)
    vocabulary = read("vocab_size")
    tied = config.get("tie_word_embeddings", kind in _TIED)
    window, windowed = _windows(model, config, kind, layers)
    shapes = Shapes(
        hidden, layers, heads, kv_heads, size, _WIDTHS[dtype],
        (*matmuls, Matmul("lm_head", hidden, vocabulary, 1)), window, windowed,
    )  # fmt: skip
    return ModelCard(model, kind, dtype, config.get("max_position_embeddings"), shapes, 0 if tied else hidden * vocabulary)


class _Reader:
    """Reads fields that must be there and are whole numbers above 0."""

    def __init__(self, model: str, config: Mapping[str, Any]) -> None:
        self._model, self.config = model, config

    def __call__(self, name: str) -> int:
        value = self.config.get(name)
        if not isinstance(value, int) or value < 1:
            raise ConfigError(
                f"plan: model {self._model!r}: {name}: got {'nothing' if value is None else repr(value)}; expected a whole"
                " number of at least 1 in config.json. Add it."
            )
        return value


def _load(model: str) -> dict[str, Any]:
    place = Path(demo.target_of(model))
    if place.suffix.lower() == ".gguf":
        from paceline.engine.gguf import unpacked

        place = unpacked(place)
    path = place / "config.json" if place.is_dir() else place
    try:
        config = parse_json(read_text(path))
    except FileNotFoundError as error:
        raise ConfigError(
            f"plan: model: got {model!r}, where there is no config.json; expected a directory with one, the file itself, or"
            f" one of the words {demo.NAME!r} and {demo.SMOLLM2!r}. Fetch the config.json of a hub model first."
        ) from error
    except (OSError, ValueError) as error:
        raise ConfigError(f"plan: model {model!r}: got {error}; expected a config.json that can be read. Correct it.") from error
    if not isinstance(config, dict):
        raise ConfigError(
            f"plan: model {model!r}: got a {type(config).__name__}; expected a config.json with fields. Correct it."
        )
    return config


def _dtype(model: str, config: Mapping[str, Any], wanted: str) -> str:
    found = wanted if wanted != "auto" else config.get("dtype") or config.get("torch_dtype")
    if found is None:
        raise ConfigError(f"plan: model {model!r}: dtype: got nothing; expected it in config.json. Give --dtype.")
    if found not in _WIDTHS:
        raise ConfigError(f"plan: dtype: got {found!r}.{did_you_mean(str(found), {'auto', *_WIDTHS})}")
    return str(found)


def _dense(read: _Reader, kind: str, hidden: int, layers: int, width: float | None) -> list[Matmul]:
    inner = read("intermediate_size")
    names = ("gate_proj", "up_proj") if _DENSE[kind] == _GATED else ("up_proj",)
    return [*(Matmul(name, hidden, inner, layers, width=width) for name in names),
            Matmul("down_proj", inner, hidden, layers, width=width)]  # fmt: skip


def _experts(read: _Reader, kind: str, hidden: int, layers: int, width: float | None) -> list[Matmul]:
    """Router and experts, and the expert that all tokens go through, where there is one."""
    if read.config.get("mlp_only_layers") or read.config.get("decoder_sparse_step", 1) != 1:
        raise ConfigError(
            f"plan: model_type {kind!r}: got mlp_only_layers or decoder_sparse_step, dense layers among those with experts;"
            " expected experts in every layer. Such models are not modelled."
        )
    number = "num_local_experts" if "num_local_experts" in read.config else "num_experts"
    count, active, inner = read(number), read("num_experts_per_tok"), read(_EXPERTS[kind])
    found = [Matmul("router", hidden, count, layers)]
    for name, inputs, outputs in (("gate_proj", hidden, inner), ("up_proj", hidden, inner), ("down_proj", inner, hidden)):
        found.append(Matmul(f"experts {name}", inputs, outputs, layers, count, active, width))
    if kind == "qwen2_moe":
        shared = read("shared_expert_intermediate_size")
        found += [Matmul("shared gate", hidden, 1, layers),
                  Matmul("shared gate_proj", hidden, shared, layers, width=width),
                  Matmul("shared up_proj", hidden, shared, layers, width=width),
                  Matmul("shared down_proj", shared, hidden, layers, width=width)]  # fmt: skip
    return found


def _windows(model: str, config: Mapping[str, Any], kind: str, layers: int) -> tuple[int, int]:
    """Return the reach of sliding layers and their number."""
    kinds = config.get("layer_types") or []
    unknown = set(kinds) - {"full_attention", "sliding_attention"}
    if unknown:
        raise ConfigError(f"plan: model {model!r}: got layers of {', '.join(sorted(unknown))}, which are not modelled.")
    window = config.get("sliding_window")
    if not window or (kind.startswith("qwen") and not config.get("use_sliding_window")):
        return 0, 0
    if kinds:
        return window, kinds.count("sliding_attention")
    every = config.get("sliding_window_pattern") or _FULL_EVERY.get(kind)
    if every:
        return window, layers - layers // every
    return window, max(0, layers - config.get("max_window_layers", 0)) if kind.startswith("qwen") else layers


def _bits(model: str, config: Mapping[str, Any]) -> int | None:
    """Return the bits of quantised weights; None = they are as wide as any other number."""
    found = config.get("quantization_config")
    if not found:
        return None
    bits = found.get("bits") or _BITS_OF_METHOD.get(str(found.get("quant_method")))
    bits = bits or (4 if found.get("load_in_4bit") else 8 if found.get("load_in_8bit") else None)
    if bits is None:
        raise ConfigError(
            f"plan: model {model!r}: got quantization_config of {found.get('quant_method')!r}, which does not say how many bits a"
            " weight has; expected bits. Give --weight-bits."
        )
    return int(bits)
