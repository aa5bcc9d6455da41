"""Build transformers models from memory-mapped GGUF files."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import AutoConfig, GenerationConfig, PreTrainedModel

from paceline.backend.block_formats import BF16, BLOCK_FORMATS, BlockFormat
from paceline.backend.packed_experts import PackedExperts
from paceline.backend.packed_weight import PackedWeight
from paceline.errors import ConfigError
from paceline.model import gguf, gguf_header
from paceline.model.gguf_conversion import Conversion, conversion_of
from paceline.model.gguf_tensors import TensorEntry, TensorTable, WeightEntry, empty_model
from paceline.model.settings import INPUT_MULTIPLE, OUTPUT_MULTIPLE

# Files of a checkpoint with packed weights.
WEIGHTS, BUFFERS = "weights.bin", "buffers.safetensors"


def load_packed(path: Path) -> PreTrainedModel:
    """Build a model that reads its weights directly from its GGUF files.

    Raises:
        ConfigError: A file is damaged, or contains weights in an unsupported format.
    """
    files = gguf_header.files_of(path)
    with gguf.readable(path):
        stamps = [_stamp(file) for file in files]
        model = load_described(path, files, gguf_header.described(files))
    if [_stamp(file) for file in files] != stamps:
        raise ConfigError(
            f"model {str(path)!r}: the file changed while it was read; expected one that is"
            " complete. Load it again."
        )
    return model


def load_described(
    path: Path, files: Sequence[Path], folder: Path, packed: bool = True
) -> PreTrainedModel:
    """Build a bfloat16 model from GGUF files and their description in a folder.

    Args:
        path: Name of the model, for error messages.
        files: GGUF files with the weights.
        folder: Folder with the model's configuration, the table of tensors, and any buffers.
        packed: Whether to keep weights packed if their modules can compute with packed weights;
            default True.
    Raises:
        ConfigError: A file is damaged, or contains weights in an unsupported format.
        OSError: A file cannot be read.
    """
    maps = [torch.from_numpy(np.memmap(file, np.uint8, mode="c")) for file in files]
    table = TensorTable.load(folder)
    if packed:
        _require_packed_formats(path, table)
    model = empty_model(AutoConfig.from_pretrained(folder))
    model.generation_config = GenerationConfig.from_pretrained(folder)
    loader = _WeightLoader(model, table, files, maps, packed)
    for name in table.weights:
        _assign(model, name, loader.load(name))
    if (folder / BUFFERS).is_file():
        model.load_state_dict(load_file(folder / BUFFERS), strict=False)
    model.tie_weights()
    return model.eval()


def _stamp(path: Path) -> tuple[int, int]:
    stat = path.stat()
    return stat.st_size, stat.st_mtime_ns


def _require_packed_formats(path: Path, table: TensorTable) -> None:
    """Raise an error if a file uses a format that the kernels do not support."""
    used = {
        table.tensors[tensor].type_id
        for weight in table.weights.values()
        for tensor in weight.tensors
    }
    unknown = sorted(used - BLOCK_FORMATS.keys())
    if unknown:
        names = ", ".join(_format_of(type_id).name for type_id in unknown)
        known = ", ".join(block_format.name for block_format in BLOCK_FORMATS.values())
        raise ConfigError(
            f"model {str(path)!r}: got weights in {names}; expected one of: {known}. Use another"
            " file of the model, or unpack this one (\0unpack=True\0)."
        )


def _format_of(type_id: int) -> BlockFormat:
    """Return the block format for a type id in GGUF files."""
    if type_id in BLOCK_FORMATS:
        return BLOCK_FORMATS[type_id]
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType  # an optional package

    kind = GGMLQuantizationType(type_id)
    return BlockFormat(kind.name, type_id, *GGML_QUANT_SIZES[kind])


def _blocks(path: Path, content: Tensor, name: str, entry: TensorEntry) -> Tensor:
    """Return the encoded rows of a tensor in a file, uint8 [rows, bytes per row]."""
    block_format, (*outer, inner) = _format_of(entry.type_id), entry.shape
    rows, row_bytes = int(np.prod(outer, dtype=np.int64)), block_format.row_bytes(inner)
    end = entry.offset + rows * row_bytes
    if end > len(content) or inner % block_format.numbers:
        raise gguf.refused(path, f"{len(content)} of its {end} bytes, in tensor {name}")
    return content[entry.offset : end].view(rows, row_bytes)


class _WeightLoader:
    """Loads the weights of a model from its files.

    Args:
        model: Model without weights.
        table: Tensors in the files.
        files: GGUF files.
        maps: Contents of the files, uint8.
        packed: Whether to keep weights packed if their modules can compute with packed weights.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        table: TensorTable,
        files: Sequence[Path],
        maps: Sequence[Tensor],
        packed: bool,
    ) -> None:
        self._model, self._table, self._files, self._maps = model, table, files, maps
        self._packed = packed

    @cached_property
    def _conversion(self) -> Conversion:
        return conversion_of(self._table.architecture, self._model, self._table.tensors)

    def load(self, name: str) -> Tensor:
        """Return a weight, packed if its module uses packed weights."""
        weight = self._table.weights[name]
        entries = [self._table.tensors[tensor] for tensor in weight.tensors]
        blocks = [
            _blocks(self._files[entry.file], self._maps[entry.file], tensor, entry)
            for tensor, entry in zip(weight.tensors, entries, strict=True)
        ]
        module = self._model.get_submodule(name.rpartition(".")[0])
        expected = tuple(attrgetter(name)(self._model).shape)
        if self._packed and _is_packable(module, name, entries, weight):
            order = None if weight.order is None else torch.tensor(self._table.orders[weight.order])
            tensor = _pack(blocks[0], entries[0], order)
        elif self._packed and not weight.is_converted and are_packable_experts(module):
            parts = [_pack(*part, None) for part in zip(blocks, entries, strict=True)]
            tensor = PackedExperts(parts, entries[0].shape[0])
        else:
            tensor = self._unpack(name, weight, blocks, entries)
        if tuple(tensor.shape) != expected:
            raise ConfigError(
                f"cannot load a causal language model: got weights that do not match the metadata:"
                f" {name} has the shape {list(tensor.shape)} instead of {list(expected)}."
                " Fetch the file again."
            )
        return tensor

    def _unpack(
        self,
        name: str,
        weight: WeightEntry,
        blocks: Sequence[Tensor],
        entries: Sequence[TensorEntry],
    ) -> Tensor:
        """Return a weight unpacked to bfloat16, converted as in transformers' GGUF loader."""
        numbers = {
            tensor: _numbers(part, _format_of(entry.type_id)).reshape(entry.shape)
            for tensor, part, entry in zip(weight.tensors, blocks, entries, strict=True)
        }
        if len(numbers) > 1 or weight.order is not None or weight.is_converted:
            values = self._conversion.converted(name, numbers)
        else:
            (values,) = numbers.values()
        return torch.from_numpy(np.ascontiguousarray(values)).bfloat16()


def is_multiplied(module: nn.Module) -> bool:
    """Return whether a module only multiplies by its weight, or is an embedding."""
    return type(module) is nn.Linear or isinstance(module, nn.Embedding)


def _is_packable(
    module: nn.Module, name: str, entries: Sequence[TensorEntry], weight: WeightEntry
) -> bool:
    shape = entries[0].shape
    return (
        is_multiplied(module)
        and name.endswith(".weight")
        and not weight.is_converted
        and len(entries) == 1
        and len(shape) == 2
        and shape[0] % OUTPUT_MULTIPLE == 0
        and shape[1] % INPUT_MULTIPLE == 0
    )


def are_packable_experts(module: nn.Module) -> bool:
    """Return whether the backend can compute a module's experts with packed weights."""
    return (
        vars(module).get("is_transposed") is False
        and module._parameters.keys() == {"gate_up_proj", "down_proj"}
        and all(
            weight.dim() == 3
            and weight.shape[1] % (2 * OUTPUT_MULTIPLE) == 0  # gate and up may be two tensors
            and weight.shape[2] % INPUT_MULTIPLE == 0
            for weight in module.parameters(recurse=False)
        )
    )


def _pack(blocks: Tensor, entry: TensorEntry, order: Tensor | None) -> Tensor:
    """Return a packed weight, or a plain tensor if the file has bfloat16 values."""
    block_format = BLOCK_FORMATS[entry.type_id]
    if block_format is not BF16:
        return PackedWeight(blocks, block_format, entry.shape[-1], order)
    numbers = blocks.view(torch.bfloat16)
    return numbers if order is None else numbers[order]


def _numbers(blocks: Tensor, block_format: BlockFormat) -> Any:
    """Unpack rows of blocks to float32 numbers."""
    plain = {"F32": np.float32, "F16": np.float16}.get(block_format.name)
    if plain is not None:
        return blocks.numpy().view(plain).astype(np.float32)
    from gguf import GGMLQuantizationType, quants  # an optional package

    return quants.dequantize(blocks.numpy(), GGMLQuantizationType[block_format.name])


def _assign(model: PreTrainedModel, name: str, weight: Tensor) -> None:
    """Set a model's parameter or buffer, given its dotted name."""
    owner, _, attribute = name.rpartition(".")
    module = model.get_submodule(owner)
    if attribute in module._buffers:
        module._buffers[attribute] = weight
    else:
        module.register_parameter(attribute, nn.Parameter(weight, requires_grad=False))
