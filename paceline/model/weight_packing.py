"""Pack the weights of safetensors checkpoints into the blocks of GGUF files.

Packing changes the model. The packed weights are stored in the cache and mapped into memory, like
those of a GGUF file.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig, PreTrainedModel
from transformers.utils import cached_file

from paceline.backend.block_formats import BF16, BlockFormat
from paceline.errors import ConfigError, did_you_mean
from paceline.model import gguf
from paceline.model.block_encoding import Q4_K, Q8_0, encode
from paceline.model.gguf_tensors import TensorEntry, TensorTable, WeightEntry
from paceline.model.packed_model import (
    BUFFERS,
    WEIGHTS,
    are_packable_experts,
    is_multiplied,
    load_described,
)
from paceline.model.settings import OUTPUT_MULTIPLE, WEIGHT_ALIGNMENT
from paceline.util import cache

_KIND = "packed-weights-v3"  # increase the number when the written files change
# Block formats for each value of `weights`, in order of preference. A weight gets the first format
# whose block length divides the length of its rows.
_FORMATS = {"q8_0": (Q8_0,), "q4_k": (Q4_K, Q8_0)}
_INDEX, _ONE_FILE = "model.safetensors.index.json", "model.safetensors"


def load_with_packed_weights(
    source: str, weights: str, load: Callable[[], PreTrainedModel]
) -> PreTrainedModel:
    """Load a checkpoint with packed weights, packing them unless they are cached.

    Args:
        source: Directory or hub id of a checkpoint.
        weights: Format of the packed weights, "q8_0" or "q4_k".
        load: Function that loads the original model.
    Raises:
        ConfigError: The format is unknown, or the checkpoint's weights cannot be packed.
    """
    if weights not in _FORMATS:
        raise ConfigError(f"\0weights\0: got {weights!r}.{did_you_mean(str(weights), _FORMATS)}")
    gguf.require_packages(Path(source))
    try:
        _require_packable(source, weights)
        key = _key(source, weights)
        folder = cache.obtain_folder(
            cache.root() / _KIND / key,
            f"{source} as {weights}",
            lambda part: _pack(source, weights, load(), part),
            lambda: gguf.say(f"another process packs {source}"),
        )
        return load_described(Path(source), [folder / WEIGHTS], folder)
    except OSError as error:
        raise ConfigError(
            f"model: {source!r} cannot be read ({error}). Check the name and the permissions."
        ) from error


def _require_packable(source: str, weights: str) -> None:
    adapter = cached_file(
        source, "adapter_config.json", _raise_exceptions_for_missing_entries=False
    )
    if adapter is not None:
        raise _refused(source, weights, "an adapter", "Merge the adapter into its model first.")
    try:
        config = AutoConfig.from_pretrained(source)
    except Exception as error:  # a damaged configuration raises many types
        raise ConfigError(
            f"cannot load a causal language model from {source!r}: {' '.join(str(error).split())}"
        ) from error
    if getattr(config, "quantization_config", None) is not None:
        raise _refused(source, weights, "a quantised checkpoint", "Use the original checkpoint.")
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        reason = f"a model of type {config.model_type!r}, which is more than a text decoder,"
        raise _refused(source, weights, reason, "Leave the option out.")


def _refused(source: str, weights: str, got: str, fix: str) -> ConfigError:
    return ConfigError(
        f"\0weights={weights!r}\0: got {got} in {source!r}; expected a checkpoint in float32,"
        f" bfloat16 or float16. {fix}"
    )


def _key(source: str, weights: str) -> str:
    """Return a checksum of the checkpoint's files and the packed format."""
    index = cached_file(source, _INDEX, _raise_exceptions_for_missing_entries=False)
    names = [_ONE_FILE]
    if index is not None:
        names = sorted(set(json.loads(Path(index).read_bytes())["weight_map"].values()))
    digest = hashlib.sha256(weights.encode())
    for name in ("config.json", *names):
        digest.update(cache.checksum(Path(cached_file(source, name))).encode())
    return digest.hexdigest()


def _pack(source: str, weights: str, model: PreTrainedModel, folder: Path) -> dict[str, Any]:
    """Write packed weights to `folder`, and return the cache entry's metadata."""
    start = time.perf_counter()
    gguf.say(f"packing {source} as {weights}, once, into {cache.root()} ...")
    table, used = TensorTable({}), Counter[str]()
    with (folder / WEIGHTS).open("wb") as file:
        for name, parameter in model.named_parameters():
            block_format = _format_of(
                model.get_submodule(name.rpartition(".")[0]), parameter, weights
            )
            file.write(bytes(-file.tell() % WEIGHT_ALIGNMENT))
            shape = list(parameter.shape)
            table.tensors[name] = TensorEntry(0, file.tell(), block_format.type_id, shape)
            table.weights[name] = WeightEntry((name,), None)
            file.write(encode(parameter, block_format).numpy().data)
            used[block_format.name] += parameter.numel()
    table.write(folder)
    _write_buffers(model, folder)
    model.config.dtype = torch.bfloat16
    model.config.save_pretrained(folder)
    model.generation_config.save_pretrained(folder)
    total = sum(used.values())
    shares = ", ".join(f"{count / total:.0%} in {name}" for name, count in used.most_common())
    gguf.say(f"packed {source} in {time.perf_counter() - start:.0f} s: {shares}")
    return {"weights": weights, "parameters": total, "numbers by format": dict(used)}


def _write_buffers(model: PreTrainedModel, folder: Path) -> None:
    """Write the model's persistent buffers (those in its checkpoints) to a folder."""
    names = model.state_dict().keys()
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers() if name in names}
    save_file(buffers, folder / BUFFERS)


def _format_of(module: nn.Module, weight: Tensor, weights: str) -> BlockFormat:
    """Return the block format for a weight; BF16 if the weight cannot be packed."""
    is_matrix = is_multiplied(module) and weight.dim() == 2 and not len(weight) % OUTPUT_MULTIPLE
    if not is_matrix and not are_packable_experts(module):
        return BF16
    fitting = (each for each in _FORMATS[weights] if weight.shape[-1] % each.numbers == 0)
    return next(fitting, BF16)
