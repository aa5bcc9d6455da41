"""Match the tensors in GGUF files to the weights of transformers models."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.initialization import no_init_weights
from transformers.modeling_gguf_pytorch_utils import TENSOR_PROCESSORS, TensorProcessor

from paceline.model.gguf import refused
from paceline.model.gguf_directory import list_tensors
from paceline.model.settings import MAX_HEADER_BYTES

HEAD = "output.weight"  # a file without it ties the LM head to the embedding
_FILE = "tensors.json"
_EXPERTS = ".experts."  # in the names of weights that transformers stores for all experts together


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
    """A weight of a transformers model, and the tensor in the file that stores it.

    Attributes:
        tensor: Name of the tensor in the file.
        order: Index of the weight's row permutation in `TensorTable.orders`. None means that the
            file and the model store the rows in the same order. -1 means that more than the order
            of the rows differs.
    """

    tensor: str
    order: int | None


@dataclass(slots=True)
class TensorTable:
    """The tensors of a GGUF model, and the weights that use them.

    Attributes:
        tensors: Tensors by name in the file.
        weights: Weights of the transformers model by name.
        orders: Row permutations. For every row of a weight, a permutation gives the index of that
            row in the file.
        architecture: Name of the architecture in the file.
        has_experts: Whether the model has weights of MoE experts, which the table omits.
    """

    tensors: dict[str, TensorEntry]
    weights: dict[str, WeightEntry] = field(default_factory=dict)
    orders: list[list[int]] = field(default_factory=list)
    architecture: str = ""
    has_experts: bool = False

    def connect(self, model: PreTrainedModel, architecture: str) -> None:
        """Find the tensor for each of a model's weights.

        Args:
            model: Model, which may be without weights.
            architecture: Name of the architecture in the file.
        Raises:
            ValueError: A weight has no tensor in the file.
        """
        from gguf import MODEL_ARCH_NAMES, get_tensor_name_map  # an optional package

        self.architecture = architecture
        kinds = {name: kind for kind, name in MODEL_ARCH_NAMES.items()}
        layers = int(model.config.get_text_config(decoder=True).num_hidden_layers)
        names = get_tensor_name_map(kinds[architecture], layers)
        stored_tensors = {
            name: stored
            for name, _ in model.named_parameters()
            if _EXPERTS not in name and (stored := _stored_name(names, name)) in self.tensors
        }
        required = [name for name, _ in model.named_parameters() if _EXPERTS not in name]
        missing = [name for name in required if name not in stored_tensors]
        self.has_experts = any(_EXPERTS in name for name, _ in model.named_parameters())
        if missing:
            raise ValueError(f"no weights for {', '.join(sorted(missing)[:3])}")
        processor = TensorReordering(architecture, model, stored_tensors)
        for name, stored in stored_tensors.items():
            order = None
            if len(self.tensors[stored].shape) > 1:
                order = self._index_of(processor.order(stored, self.tensors[stored].shape[0]))
            self.weights[name] = WeightEntry(stored, order)

    def _index_of(self, order: NDArray[np.int64] | None) -> int | None:
        if order is None:
            return -1
        rows = order.tolist()
        if rows == list(range(len(rows))):
            return None
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
            "has_experts": self.has_experts,
        }
        (folder / _FILE).write_text(json.dumps(content), encoding="utf-8")

    @staticmethod
    def load(folder: Path) -> TensorTable:
        """Read the tensor table that `write` stored in a folder."""
        content = json.loads((folder / _FILE).read_text(encoding="utf-8"))
        return TensorTable(
            {name: TensorEntry(*entry) for name, entry in content["tensors"].items()},
            {name: WeightEntry(*entry) for name, entry in content["weights"].items()},
            content["orders"],
            content["architecture"],
            content.get("has_experts", False),  # not in older files of packed checkpoints
        )


class TensorReordering:
    """The changes that transformers makes to tensors when it loads a GGUF file.

    Args:
        architecture: Name of the architecture in the file.
        model: The transformers model.
        names: Names of the tensors in the file, keyed by the names of the model's weights.
    """

    def __init__(self, architecture: str, model: PreTrainedModel, names: Mapping[str, str]) -> None:
        config = model.config.get_text_config(decoder=True).to_dict()
        self._processor = TENSOR_PROCESSORS.get(architecture, TensorProcessor)(config=config)
        self._options = {
            "tensor_key_mapping": {stored: name for name, stored in names.items()},
            "parsed_parameters": {"config": config, "tensors": {}},
        }

    def applied(self, name: str, numbers: NDArray[Any]) -> NDArray[Any]:
        """Return a tensor with the changes that transformers makes when loading it."""
        result = self._processor.process(weights=numbers, name=name, **self._options)
        changed: NDArray[Any] = result.weights
        return changed

    def order(self, name: str, rows: int) -> NDArray[np.int64] | None:
        """Return the row permutation of a tensor; see `TensorTable.orders`.

        Returns:
            Row indices; None if transformers changes more than the order of the rows.
        """
        numbers = np.arange(rows, dtype=np.float64)[:, None]
        try:
            changed = self.applied(name, numbers)
        except Exception:  # transposed or split tensors have other numbers of axes
            return None
        if changed.shape != numbers.shape or not np.array_equal(np.sort(changed, 0), numbers):
            return None
        return changed[:, 0].astype(np.int64)


def read(files: Sequence[Path]) -> TensorTable:
    """Read the list of tensors from the headers of a model's GGUF files.

    Raises:
        ConfigError: A header is too long, a file is truncated, or two tensors overlap.
        ValueError: The format of a tensor is unknown, or two tensors have the same name.
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
                raise ValueError(f"two tensors named {tensor.name}")
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


def _stored_name(names: Any, name: str) -> str | None:
    """Return the name of a weight's tensor in the file, or None."""
    named = names.get_name(name)  # of a parameter that is not called "weight"
    if named is not None:
        return f"{named}.weight"
    base, _, suffix = name.rpartition(".")
    while base:
        stored = names.get_name(base)
        if stored is not None:
            return f"{stored}.{suffix}"
        base = base.partition(".")[2]
    return None
