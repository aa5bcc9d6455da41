"""Find the GGUF tensors that make up each weight of a model.

The names and values follow the conversions that transformers applies when it loads a GGUF file.
Most conversions keep all rows of a tensor, possibly in another order. Such tensors can stay packed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel
from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key
from transformers.integrations.gguf.utils import (
    get_gguf_conversion_mapping,
    is_gguf_arch_supported,
)
from transformers.modeling_gguf_pytorch_utils import TENSOR_PROCESSORS, TensorProcessor

from paceline.errors import ConfigError


class Conversion(Protocol):
    """Turns tensors of a GGUF file into the weights of a transformers model."""

    def sources(self, name: str) -> tuple[str, ...]:
        """Return the names of the tensors in the file that make up a weight.

        The result is empty if the file has no such tensors.

        Args:
            name: Name of the weight in the transformers model.
        """

    def converted(self, name: str, numbers: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
        """Compute a weight from the tensors that make it up.

        Args:
            name: Name of the weight in the transformers model.
            numbers: Values of the tensors that `sources` names, by tensor name.
        """


def conversion_of(
    architecture: str, model: PreTrainedModel, tensors: Collection[str]
) -> Conversion:
    """Return the conversion that transformers uses for an architecture.

    Args:
        architecture: Name of the architecture in the file.
        model: The transformers model, which may be without weights.
        tensors: Names of the tensors in the file.
    Raises:
        ConfigError: The `gguf` package does not know the architecture.
    """
    if is_gguf_arch_supported(architecture):
        return _MappedConversion(architecture, model, tensors)
    return _ProcessorConversion(architecture, model, tensors)


def loaded_names(model: PreTrainedModel) -> Iterator[str]:
    """Yield the names of the weights and buffers that a model's checkpoints contain."""
    yield from (name for name, _ in model.named_parameters())
    stored = model.state_dict().keys()
    yield from (name for name, _ in model.named_buffers() if name in stored)


def order_of_rows(
    conversion: Conversion, name: str, shapes: Mapping[str, Sequence[int]]
) -> NDArray[np.int64] | None:
    """Return the order in which a conversion puts the rows of a weight, or None.

    If a conversion only reorders rows, the weight can stay packed. To find the order, the function
    runs the conversion on test tensors in which every row contains its own row number.

    Args:
        conversion: Conversion to examine.
        name: Name of a weight of the model.
        shapes: Shapes of the tensors that make up the weight, by name.
    Returns:
        For every row of the weight, the index of that row in the file. None means that the
        conversion does more than reorder rows. Tensors with more than two axes, and weights made
        from several tensors, must keep their order; for any other order, the result is None.
    """
    # The values start at 1, so that scaling or shifting changes all of them.
    probes = [(*shape[:-1], 1) if len(shape) > 1 else tuple(shape) for shape in shapes.values()]
    sizes = [int(np.prod(shape, dtype=np.int64)) for shape in probes]
    every = np.arange(1.0, sum(sizes) + 1)
    split = np.split(every, np.cumsum(sizes)[:-1])
    parts = [part.reshape(shape) for part, shape in zip(split, probes, strict=True)]
    joined = np.concatenate(parts, axis=max(-2, -parts[0].ndim))
    try:
        with np.errstate(invalid="ignore"):  # Mamba's logarithm of negated decay rates
            numbers = {source: part.copy() for source, part in zip(shapes, parts, strict=True)}
            changed = conversion.converted(name, numbers)
    except Exception:  # transposed or split tensors have other numbers of axes
        return None
    if changed.shape != joined.shape:
        return None
    if np.array_equal(changed, joined):
        return np.arange(len(every))
    if joined.ndim != 2 or len(parts) > 1 or not np.array_equal(np.sort(changed, 0), joined):
        return None
    return changed[:, 0].astype(np.int64) - 1


class _ProcessorConversion:
    """Converts tensors of most architectures with transformers' tensor processors."""

    def __init__(self, architecture: str, model: PreTrainedModel, tensors: Collection[str]) -> None:
        from gguf import MODEL_ARCH_NAMES, get_tensor_name_map  # an optional package

        text_config = model.config.get_text_config(decoder=True)
        kinds = {name: kind for kind, name in MODEL_ARCH_NAMES.items()}
        if architecture not in kinds:
            raise ConfigError(
                f"The installed gguf package does not know {architecture}, the architecture of the"
                " file. Upgrade it: pip install --upgrade gguf."
            )
        self._names = get_tensor_name_map(kinds[architecture], int(text_config.num_hidden_layers))
        self._tensors = tensors
        self._config = text_config.to_dict()
        self._processor = TENSOR_PROCESSORS.get(architecture, TensorProcessor)(config=self._config)

    def sources(self, name: str) -> tuple[str, ...]:
        """Return the names of the tensors that make up a weight; empty if there are none."""
        stored = self._stored_name(name)
        if stored in self._tensors:
            return (str(stored),)
        # Maps the name of each tensor that is part of the weight, without its suffix, to `name`.
        fused: dict[str, str] = {}
        self._processor.perform_fallback_tensor_mapping(fused, "", "", name)
        several = tuple(self._stored(part) for part, weight in fused.items() if weight == name)
        return several if several and all(part in self._tensors for part in several) else ()

    def converted(self, name: str, numbers: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
        """Compute a weight from the values of the tensors that `sources` names."""
        keys = dict.fromkeys((*numbers, *(part.removesuffix(".weight") for part in numbers)), name)
        # A processor returns the weight. If the weight consists of several tensors, the processor
        # stores it in `fused` instead.
        fused: dict[str, Any] = {}
        parsed = {"config": self._config, "tensors": fused}
        for source, values in numbers.items():
            result = self._processor.process(
                weights=values, name=source, tensor_key_mapping=keys, parsed_parameters=parsed
            )
        changed: NDArray[Any] = fused[name].numpy() if name in fused else result.weights
        return changed

    def _stored(self, base: str) -> str:
        """Return `base` if a tensor has this name; otherwise append ".weight"."""
        return base if base in self._tensors else f"{base}.weight"

    def _stored_name(self, name: str) -> str | None:
        """Return the name of a weight's tensor in the file; None if it is unknown."""
        named = self._names.get_name(name)  # if the parameter's name does not end with "weight"
        if named is not None:
            return self._stored(named)
        base, _, suffix = name.rpartition(".")
        while base:
            stored = self._names.get_name(base)
            if stored is not None:
                return f"{stored}.{suffix}"
            base = base.partition(".")[2]
        return None


class _MappedConversion:
    """Converts tensors of newer architectures with transformers' conversion mappings."""

    def __init__(self, architecture: str, model: PreTrainedModel, tensors: Collection[str]) -> None:
        mapping = get_gguf_conversion_mapping(architecture, model.config)
        renamings = [each for each in mapping if isinstance(each, WeightRenaming)]
        converters = [each for each in mapping if isinstance(each, WeightConverter)]
        self._converters = {
            pattern: converter for converter in converters for pattern in converter.source_patterns
        }
        # For each weight: the tensors that make it up, each with the pattern that its name matched.
        self._matches: dict[str, list[tuple[str | None, str]]] = {}
        for tensor in tensors:
            name, pattern = rename_source_key(tensor, renamings, converters)
            self._matches.setdefault(name, []).append((pattern, tensor))
        for matches in self._matches.values():
            if len(matches) > 1 and matches[0][0] is not None:
                patterns = self._converters[matches[0][0]].source_patterns
                matches.sort(key=lambda match: patterns.index(match[0]))

    def sources(self, name: str) -> tuple[str, ...]:
        """Return the names of the tensors that make up a weight; empty if there are none."""
        return tuple(tensor for _, tensor in self._matches.get(name, ()))

    def converted(self, name: str, numbers: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
        """Compute a weight from the values of the tensors that `sources` names."""
        matches = self._matches[name]
        first, source = matches[0]
        if first is None:
            return numbers[source]
        converter = self._converters[first]
        tensors: dict[Any, Any] = {
            pattern: torch.from_numpy(numbers[tensor]) for pattern, tensor in matches
        }
        for operation in converter.operations:
            tensors = operation.convert(
                tensors,
                source_patterns=converter.source_patterns,
                target_patterns=converter.target_patterns,
                full_layer_name=name,
            )
        (changed,) = tensors.values()
        values: NDArray[Any] = changed.numpy()
        return values
