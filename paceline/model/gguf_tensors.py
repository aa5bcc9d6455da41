"""Match the tensors in GGUF files to the weights of transformers models."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.initialization import no_init_weights

from paceline.backend.block_formats import F32
from paceline.model.gguf import UnsupportedContent, refused
from paceline.model.gguf_conversion import conversion_of, loaded_names, order_of_rows
from paceline.model.gguf_directory import list_tensors
from paceline.model.settings import MAX_HEADER_BYTES

HEAD = "output.weight"  # a file without it ties the LM head to the embedding
TABLE_FILE = "tensors.json"
_OF_LAYER = re.compile(r"blk\.(\d+)\.(\w+)")
# Tensors of layers that use the keys and values of earlier layers; files may contain them.
_REPLACED = {"attn_k", "attn_v", "attn_k_norm"}


class TensorEntry(NamedTuple):
    """A tensor in a GGUF file.

    Attributes:
        file: Index of the file.
        offset: Offset of the first byte in the file.
        type_id: Id of the block format.
        shape: Shape, with the outermost dimension first.
    """

    file: int
    offset: int
    type_id: int
    shape: list[int]


class WeightEntry(NamedTuple):
    """A weight or buffer of a model, and the tensors in the file that store it.

    Attributes:
        tensors: Names of the tensors in the file. The weight consists of the rows of all these
            tensors. If the weight has an axis for experts, the tensors are joined separately for
            each expert.
        order: Index of the weight's row permutation in `TensorTable.orders`. None means that the
            file and the model store the rows in the same order.
        is_converted: Whether the file and the model differ in more than the order of the rows. If
            so, `order` is None.
    """

    tensors: Sequence[str]
    order: int | None
    is_converted: bool = False


@dataclass(slots=True)
class TensorTable:
    """The tensors of a GGUF model, and the weights that use them.

    Attributes:
        tensors: Tensors by name in the file.
        weights: Weights and buffers of the transformers model by name.
        orders: Row permutations. For every row of a weight, a permutation contains the index of
            that row in the file.
        architecture: Name of the architecture in the file.
    """

    tensors: dict[str, TensorEntry]
    weights: dict[str, WeightEntry] = field(default_factory=dict)
    orders: list[list[int]] = field(default_factory=list)
    architecture: str = ""

    def connect(self, model: PreTrainedModel, architecture: str) -> None:
        """Find the tensors for each of a model's weights.

        Args:
            model: Model, which may be without weights.
            architecture: Name of the architecture in the file.
        Raises:
            UnsupportedContent: A weight has no tensor, or a layer's tensor has no weight.
        """
        self.architecture = architecture
        conversion = conversion_of(architecture, model, self.tensors)
        sources = {name: conversion.sources(name) for name in loaded_names(model)}
        missing = [name for name, tensors in sources.items() if not tensors]
        if missing:
            raise UnsupportedContent(f"no weights for {', '.join(sorted(missing)[:3])}")
        self._require_all_used(model, {name for names in sources.values() for name in names})
        for name, tensors in sources.items():
            shapes = {tensor: self.tensors[tensor].shape for tensor in tensors}
            order = order_of_rows(conversion, name, shapes)
            index = None if order is None else self._index_of(order)
            self.weights[name] = WeightEntry(tensors, index, order is None)

    def _require_all_used(self, model: PreTrainedModel, used: Set[str]) -> None:
        """Raise an error if the model has no weight for a tensor of a decoder layer.

        Tensors of additional layers, such as layers for multi-token prediction, are ignored.
        """
        config = model.config.get_text_config(decoder=True)
        layers = int(config.num_hidden_layers)
        num_own = layers - (getattr(config, "num_kv_shared_layers", None) or 0)
        unused = [
            name
            for name in self.tensors.keys() - used
            if (match := _OF_LAYER.match(name))
            and int(match[1]) < (num_own if match[2] in _REPLACED else layers)
            and "rot" not in name
        ]
        if unused:
            raise UnsupportedContent(f"weights that {type(model).__name__} lacks: {min(unused)}")

    def vector(self, files: Sequence[Path], name: str) -> NDArray[np.float32] | None:
        """Read a one-dimensional float32 tensor; return None if the files lack it.

        Raises:
            UnsupportedContent: The tensor is not in float32 format.
        """
        entry = self.tensors.get(name)
        if entry is None:
            return None
        if entry.type_id != F32.type_id:
            raise UnsupportedContent(f"{name} in a format other than F32")
        (size,) = entry.shape
        return np.fromfile(files[entry.file], np.float32, size, offset=entry.offset)

    def _index_of(self, order: NDArray[np.int64]) -> int | None:
        """Store a row permutation, and return its index; None if it changes nothing."""
        if np.array_equal(order, np.arange(len(order))):
            return None
        rows = order.tolist()
        if rows not in self.orders:
            self.orders.append(rows)
        return self.orders.index(rows)

    def write(self, folder: Path) -> None:
        """Write the tensor table to a JSON file in a folder."""
        content = {
            "tensors": self.tensors,
            "weights": self.weights,
            "orders": self.orders,
            "architecture": self.architecture,
        }
        (folder / TABLE_FILE).write_text(json.dumps(content), encoding="utf-8")

    @staticmethod
    def load(folder: Path) -> TensorTable:
        """Read the tensor table that `write` stored in a folder."""
        content = json.loads((folder / TABLE_FILE).read_text(encoding="utf-8"))
        return TensorTable(
            {name: TensorEntry(*entry) for name, entry in content["tensors"].items()},
            {name: WeightEntry(*entry) for name, entry in content["weights"].items()},
            content["orders"],
            content["architecture"],
        )


def read(files: Sequence[Path]) -> TensorTable:
    """Read the list of tensors from the headers of a model's GGUF files.

    Raises:
        ConfigError: A header is too long, a file is truncated, or two tensors overlap.
        UnsupportedContent: Two tensors have the same name.
        ValueError: The format of a tensor is unknown.
    """
    tensors: dict[str, TensorEntry] = {}
    for index, path in enumerate(files):
        listed, end = list_tensors(path)
        if end > MAX_HEADER_BYTES:
            raise refused(path, f"a header of {end} bytes")
        for tensor in sorted(listed, key=lambda tensor: tensor.offset):
            if tensor.offset < end:
                raise refused(path, f"a tensor {tensor.name} that overlaps the one before it")
            if tensor.name in tensors:
                raise UnsupportedContent(f"two tensors named {tensor.name}")
            end = tensor.offset + tensor.num_bytes
            entry = TensorEntry(index, tensor.offset, tensor.type_id, tensor.shape)
            tensors[tensor.name] = entry
        if end > path.stat().st_size:
            raise refused(path, f"{path.stat().st_size} of its {end} bytes: the file is truncated")
    return TensorTable(tensors)


def empty_model(config: Any) -> PreTrainedModel:
    """Return a bfloat16 model for a configuration, with weights on the meta device."""
    from accelerate import init_empty_weights  # an optional package

    # Random values for weights on the meta device would take 50 ms.
    with no_init_weights(), init_empty_weights(include_buffers=False):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.tie_weights()
    return model
