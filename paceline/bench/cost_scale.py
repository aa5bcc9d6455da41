"""Enlarge a small trained model so that it takes as long to run as a large one.

The quality of a drafter depends on the models' predictions, and the cost of the drafter depends on
the models' size. A small trained pair of models makes realistic predictions, but runs
unrealistically fast. `enlarge` pads the residual stream with dimensions that stay zero, and adds
heads, neurons and layers with zero output weights. The enlarged model computes all matrix products
at the larger size, but its answers do not change. Reports label such models as cost-scaled.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from paceline.bench.bench_settings import ROUNDING
from paceline.bench.settings import CostScale
from paceline.errors import ConfigError, UnsupportedModelError
from paceline.model.eagle.modules import uses_target_states
from paceline.model.identity import model_identity
from paceline.model.reduced_vocabulary import ReducedLMHead, keep_tokens

_PROJECTIONS = (
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.o_proj",
    "mlp.gate_proj",
    "mlp.up_proj",
    "mlp.down_proj",
)
_WRITERS = ("self_attn.o_proj", "mlp.down_proj")  # projections that write to the residual stream
_NORMS = ("input_layernorm", "post_attention_layernorm")


def parameter_count(model: PreTrainedModel) -> int:
    """Return the number of parameters in a model, counting tied parameters once."""
    return sum(parameter.numel() for parameter in model.parameters())


def cost_label(scale: CostScale, model: PreTrainedModel) -> str:
    """Return the label of an enlarged model, e.g. "cost-scaled 1024x12 (156 M)"."""
    return f"cost-scaled {scale} ({parameter_count(model) / 1e6:.0f} M)"


def enlarge(model: PreTrainedModel, width: int, layers: int, seed: int = 0) -> PreTrainedModel:
    """Return a larger model of the same architecture that computes the same function.

    The larger model is created on the original model's device, and its random weights depend on
    the device.

    Args:
        model: Model with the Llama architecture, which is not modified.
        width: New hidden size. The numbers of heads and key-value heads and the feed-forward size
            grow in proportion; the size of each head does not change. If `width` is the original
            hidden size times a power of 4, the rescaled norm weights are exact in any dtype.
        layers: New number of layers. The added layers are spread among the original layers, and do
            not change the result.
        seed: Random seed for the added weights. They take part in matrix products, but zero weights
            cancel their effect.
    Raises:
        UnsupportedModelError: The model has a different architecture.
        ConfigError: The model cannot be enlarged to these sizes.
    """
    _check_architecture(model)
    _check_sizes(model, width, layers)
    wanted = enlarged_config(model, width, layers)
    device = model.device
    # The constructor samples weights, which are all replaced.
    with torch.random.fork_rng([device] if device.type == "cuda" else []), device:
        larger: PreTrainedModel = AutoModelForCausalLM.from_config(
            wanted, dtype=model.dtype, attn_implementation=model.config._attn_implementation
        )
    with torch.no_grad():
        _fill(larger, model, torch.Generator(device).manual_seed(seed))
        for name, buffer in larger.named_buffers():  # rotary frequencies
            buffer.copy_(model.get_buffer(name))
    larger.generation_config = copy.deepcopy(model.generation_config)
    head: Any = model.get_output_embeddings()
    if isinstance(head, ReducedLMHead):
        keep_tokens(larger, head.token_ids.tolist())
    moved: PreTrainedModel = larger.to(device).eval()
    return moved


def _check_architecture(model: PreTrainedModel) -> None:
    if uses_target_states(model):
        raise UnsupportedModelError(
            "the draft model reads its target's hidden states and has no embedding that could be"
            " enlarged. Run the benchmark without a cost scale for the draft model."
        )
    if model.config.model_type != "llama":
        raise UnsupportedModelError(
            f"{type(model).__name__} cannot be enlarged: it is not of the Llama architecture"
            " (model_type 'llama'). Run the benchmark without a cost scale."
        )


def enlarged_config(model: PreTrainedModel, width: int, layers: int) -> Any:
    """Return the configuration of the model that `enlarge` would create.

    Args:
        model, width, layers: As in `enlarge`.
    """
    config = model.config
    wanted = copy.deepcopy(config)
    ratio = width / config.hidden_size
    wanted.hidden_size, wanted.num_hidden_layers = width, layers
    wanted.head_dim = model.model.layers[0].self_attn.head_dim
    wanted.num_attention_heads = config.num_attention_heads * width // config.hidden_size
    wanted.num_key_value_heads = config.num_key_value_heads * width // config.hidden_size
    wanted.intermediate_size = max(
        config.intermediate_size, ROUNDING * round(config.intermediate_size * ratio / ROUNDING)
    )
    wanted.rms_norm_eps = config.rms_norm_eps / ratio
    fingerprint, hidden_size = model_identity(model)
    origin = getattr(config, "enlarged_from", {"layers": config.num_hidden_layers})
    # Parts trained for the original, such as an acceptance head, also work with the larger model.
    wanted.enlarged_from = {
        "fingerprint": fingerprint,
        "hidden_size": hidden_size,
        "layers": origin["layers"],
    }
    return wanted


def _check_sizes(model: PreTrainedModel, width: int, layers: int) -> None:
    config = model.config
    own, heads = (
        config.hidden_size,
        math.gcd(config.num_attention_heads, config.num_key_value_heads),
    )
    step = own // math.gcd(own, heads)  # a step of this size adds whole heads
    if width < own or layers < config.num_hidden_layers:
        raise ConfigError(
            f"cost scale {width}x{layers} is smaller than the model, which is"
            f" {own}x{config.num_hidden_layers}. Use sizes that are at least as large."
        )
    if width % step:
        below = max(own, width - width % step)
        raise ConfigError(
            f"cost scale {width}x{layers}: the width of this model grows in steps of {step} (whole"
            f" heads). Use {below} or {below + step}."
        )


def _fill(larger: PreTrainedModel, model: PreTrainedModel, generator: torch.Generator) -> None:
    """Copy the weights of `model`; fill the added ones with random values or zeros."""
    old, new = model.config.num_hidden_layers, larger.config.num_hidden_layers
    source = {index * new // old: index for index in range(old)}  # new index -> own index
    scale = math.sqrt(model.config.hidden_size / larger.config.hidden_size)

    def normal(shape: torch.Size, like: Tensor) -> Tensor:
        deviation = float(like.float().std()) if like.numel() > 1 else 0.02
        return torch.randn(shape, generator=generator, device=like.device).mul_(deviation)

    nearest = 0
    for index, layer in enumerate(larger.model.layers):
        own = index in source
        nearest = source.get(index, nearest)
        original = model.model.layers[nearest]
        for name in _PROJECTIONS:
            writes = name in _WRITERS
            _fill_linear(
                layer.get_submodule(name), original.get_submodule(name), own, writes, normal
            )
        for name in _NORMS:
            _fill_norm(layer.get_submodule(name).weight, original.get_submodule(name).weight, scale)
    _fill_norm(larger.model.norm.weight, model.model.norm.weight, scale)
    # A tied head reads the embedding's padding, which is zero. An untied head needs no zeros.
    embedding, head = larger.get_input_embeddings().weight, larger.get_output_embeddings().weight
    if head is not embedding:
        own_head = model.get_output_embeddings().weight
        head.copy_(normal(head.shape, own_head))
        head[:, : own_head.shape[1]] = own_head
    own_embedding = model.get_input_embeddings().weight
    embedding.zero_()
    embedding[:, : own_embedding.shape[1]] = own_embedding


def _fill_linear(
    linear: torch.nn.Linear,
    original: torch.nn.Linear,
    own: bool,
    writes: bool,
    normal: Callable[[torch.Size, Tensor], Tensor],
) -> None:
    """Fill an enlarged linear layer with random weights, or with zeros.

    Args:
        linear: Layer to fill.
        original: Layer of the original model.
        own: Whether to copy the original weights into the first rows and columns.
        writes: Whether the layer writes to the residual stream. If so, the added weights are 0.
        normal: Function of a shape and a tensor. It returns random weights that have this shape
            and the standard deviation of the tensor.
    """
    rows, columns = original.weight.shape
    if writes:
        linear.weight.zero_()
    else:
        linear.weight.copy_(normal(linear.weight.shape, original.weight))
    if own:
        linear.weight[:rows, :columns] = original.weight
    if original.bias is not None:
        linear.bias.zero_()
        if own:
            linear.bias[:rows] = original.bias


def _fill_norm(weight: Tensor, original: Tensor, scale: float) -> None:
    """Write the weights of a norm so that its output does not change.

    The added dimensions are zero and lower the mean square. Normalised values therefore grow by a
    factor of 1 / `scale`.
    """
    weight.fill_(scale)
    weight[: original.shape[0]] = original * scale
