"""Build transformers models that read their weights from memory-mapped GGUF files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import AutoConfig, GenerationConfig, PreTrainedModel

from paceline.backend.block_formats import BF16, BLOCK_FORMATS, BlockFormat
from paceline.backend.packed_weight import PackedWeight
from paceline.errors import ConfigError
from paceline.model import gguf, gguf_header
from paceline.model.gguf_tensors import (
    TensorEntry,
    TensorReordering,
    TensorTable,
    WeightEntry,
    empty_model,
)
from paceline.model.settings import INPUT_MULTIPLE, OUTPUT_MULTIPLE

# Files of a checkpoint with packed weights.
WEIGHTS, BUFFERS = "weights.bin", "buffers.safetensors"


def load_packed(path: Path) -> PreTrainedModel:
    """Return a model that reads its weights directly from its GGUF files.

    Raises:
        ConfigError: A file is damaged, or contains weights in an unsupported format.
    """
    files = gguf_header.files_of(path)
    try:
        stamps = [_stamp(file) for file in files]
        model = load_described(path, files, gguf_header.described(files))
    except OSError as error:
        raise ConfigError(
            f"model: {str(path)!r} cannot be read ({error}). Check the file and its permissions."
        ) from error
    if [_stamp(file) for file in files] != stamps:
        raise ConfigError(
            f"model {str(path)!r}: the file changed while it was read; expected one that is"
            " complete. Load it again."
        )
    return model


def load_described(path: Path, files: Sequence[Path], folder: Path) -> PreTrainedModel:
    """Return a model with packed weights, from GGUF files that a folder describes.

    Args:
        path: Name of the model, for error messages.
        files: GGUF files with the weights.
        folder: Folder with the model's configuration, the table of tensors, and any buffers.
    Raises:
        ConfigError: A file is damaged, or contains weights in an unsupported format.
        OSError: A file cannot be read.
    """
    maps = [torch.from_numpy(np.memmap(file, np.uint8, mode="c")) for file in files]
    table = TensorTable.load(folder)
    if table.has_experts:
        raise ConfigError(
            f"model {str(path)!r}: got a mixture of experts, whose weights cannot stay packed."
            " Run it in llama.cpp (engine='llama.cpp'), or convert it to bfloat16 (unpack=True)."
        )
    _require_known_formats(path, table)
    model = empty_model(AutoConfig.from_pretrained(folder))
    model.generation_config = GenerationConfig.from_pretrained(folder)
    names = {name: weight.tensor for name, weight in table.weights.items()}
    reordering = TensorReordering(table.architecture, model, names)
    for name, weight in table.weights.items():
        entry = table.tensors[weight.tensor]
        blocks = _blocks(files[entry.file], maps[entry.file], weight.tensor, entry)
        _assign(model, name, _weight(model, name, blocks, table, weight, reordering))
    if (folder / BUFFERS).is_file():
        model.load_state_dict(load_file(folder / BUFFERS), strict=False)
    model.tie_weights()
    return model.eval()


def _stamp(path: Path) -> tuple[int, int]:
    stat = path.stat()
    return stat.st_size, stat.st_mtime_ns


def _require_known_formats(path: Path, table: TensorTable) -> None:
    used = {table.tensors[weight.tensor].type_id for weight in table.weights.values()}
    unknown = sorted(used - BLOCK_FORMATS.keys())
    if unknown:
        from gguf import GGMLQuantizationType  # an optional package

        names = ", ".join(GGMLQuantizationType(number).name for number in unknown)
        known = ", ".join(block_format.name for block_format in BLOCK_FORMATS.values())
        raise ConfigError(
            f"model {str(path)!r}: got weights in {names}; expected one of: {known}. Use another"
            " file of the model, or unpack this one (unpack=True)."
        )


def _blocks(path: Path, content: Tensor, name: str, entry: TensorEntry) -> Tensor:
    """Return the bytes of a tensor, uint8 [rows, bytes per row]."""
    block_format, (*outer, inner) = BLOCK_FORMATS[entry.type_id], entry.shape
    rows, row_bytes = int(np.prod(outer, dtype=np.int64)), block_format.row_bytes(inner)
    end = entry.offset + rows * row_bytes
    if end > len(content) or inner % block_format.numbers:
        raise gguf.refused(path, f"{len(content)} of its {end} bytes, in tensor {name}")
    return content[entry.offset : end].view(rows, row_bytes)


def _weight(
    model: PreTrainedModel,
    name: str,
    blocks: Tensor,
    table: TensorTable,
    weight: WeightEntry,
    reordering: TensorReordering,
) -> Tensor:
    """Return a weight, packed if its module is a matrix product or an embedding."""
    entry = table.tensors[weight.tensor]
    block_format = BLOCK_FORMATS[entry.type_id]
    expected = tuple(model.get_parameter(name).shape)
    module = model.get_submodule(name.rpartition(".")[0])
    if _is_packable(module, name, entry, weight):
        order = None if weight.order is None else torch.tensor(table.orders[weight.order])
        tensor = _packed(blocks, block_format, entry.shape[1], order)
    else:
        numbers = _unpacked(blocks, block_format).reshape(entry.shape)
        changed = reordering.applied(weight.tensor, numbers)
        tensor = torch.from_numpy(np.ascontiguousarray(changed)).bfloat16()
    if tuple(tensor.shape) != expected:
        raise ConfigError(
            f"cannot load a causal language model: got weights that do not fit the metadata, as"
            f" {name} is of shape {list(tensor.shape)}, not {list(expected)}. Fetch the file again."
        )
    return tensor


def is_multiplied(module: nn.Module) -> bool:
    """Return whether a module is a plain matrix product or an embedding."""
    return type(module) is nn.Linear or isinstance(module, nn.Embedding)


def _is_packable(module: nn.Module, name: str, entry: TensorEntry, weight: WeightEntry) -> bool:
    shape = entry.shape
    return (
        is_multiplied(module)
        and name.endswith(".weight")
        and weight.order != -1
        and len(shape) == 2
        and shape[0] % OUTPUT_MULTIPLE == 0
        and shape[1] % INPUT_MULTIPLE == 0
    )


def _packed(blocks: Tensor, block_format: BlockFormat, inner: int, order: Tensor | None) -> Tensor:
    """Return a packed weight, or a plain tensor if the file holds bfloat16 values."""
    if block_format is not BF16:
        return PackedWeight(blocks, block_format, inner, order)
    numbers = blocks.view(torch.bfloat16)
    return numbers if order is None else numbers[order]


def _unpacked(blocks: Tensor, block_format: BlockFormat) -> Any:
    plain = {"F32": np.float32, "F16": np.float16}.get(block_format.name)
    if plain is not None:
        return blocks.numpy().view(plain).astype(np.float32)
    from gguf import GGMLQuantizationType, quants  # an optional package

    return quants.dequantize(blocks.numpy(), GGMLQuantizationType[block_format.name])


def _assign(model: PreTrainedModel, name: str, weight: Tensor) -> None:
    owner, _, attribute = name.rpartition(".")
    parameter = nn.Parameter(weight, requires_grad=False)
    model.get_submodule(owner).register_parameter(attribute, parameter)
