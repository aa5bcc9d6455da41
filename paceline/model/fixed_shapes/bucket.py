"""Run forward passes in one bucket, that is, with one fixed tensor shape."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel

from paceline.backend.resolve import topk_tokens
from paceline.cuda.graphs import GraphedFunction
from paceline.model.architecture import Architecture
from paceline.model.eagle.captured_states import capture_states
from paceline.model.fixed_shapes.bucket_cache import BucketCache
from paceline.model.fixed_shapes.buckets import BucketKey
from paceline.model.fixed_shapes.graphs import BucketGraphs
from paceline.model.fixed_shapes.output import BucketOutput
from paceline.model.model_view import ModelView


@dataclass(frozen=True, slots=True)
class BucketModel:
    """A model whose forward passes run in buckets (fixed tensor shapes).

    Attributes:
        model: The transformers model.
        view: The model's `ModelView`: a copy whose modules compute the forward passes.
        architecture: Properties of the model.
        groups: Number of query heads per key head.
        device: Device on which the model expects its inputs.
    """

    model: PreTrainedModel
    view: ModelView
    architecture: Architecture
    groups: int
    device: torch.device


class BucketArguments(NamedTuple):
    """Arguments of a forward pass, in tensors whose addresses never change.

    Attributes:
        token_ids: Token ids, int64 [rows, columns].
        positions: Text positions, int64 [rows, columns].
        masks: One mask per kind of layer.
        cache: KV cache of the bucket.
    """

    token_ids: Tensor
    positions: Tensor
    masks: dict[str, Tensor]
    cache: BucketCache


class Bucket(ABC):
    """Runs forward passes with one fixed tensor shape.

    Args:
        owner: Model to run.
        key: Shape of the forward passes.
    """

    def __init__(self, owner: BucketModel, key: BucketKey) -> None:
        self._owner, self._key = owner, key
        self._graphed = GraphedFunction(self._forward)

    def run(self, graphs: BucketGraphs | None, give_up: Callable[[str], None]) -> BucketOutput:
        """Run a forward pass on the current inputs; see `GraphedFunction.run`."""
        return self._graphed.run(graphs, give_up)

    @abstractmethod
    def _prepare(self) -> BucketArguments:
        """Set the state that attention reads, and return the model's arguments."""

    def _forward(self) -> BucketOutput:
        owner, wanted = self._owner, self._key.states
        arguments = self._prepare()
        arguments.cache.begin()
        masks = arguments.masks
        inputs: dict[str, Any] = {
            "input_ids": arguments.token_ids,
            "position_ids": arguments.positions,
            "attention_mask": (
                masks if owner.architecture.mask_per_kind else next(iter(masks.values()))
            ),
            owner.view.cache_argument: arguments.cache,
            "use_cache": True,
        }
        with nullcontext() if wanted is None else capture_states(owner.model, wanted) as states:
            logits = owner.view.module(**inputs).logits
        num_top = self._key.num_top
        return BucketOutput(logits, states, topk_tokens(logits, num_top) if num_top else None)
