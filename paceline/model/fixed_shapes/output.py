"""Define the results of a forward pass with a fixed shape."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from paceline.model.eagle.captured_states import CapturedStates


@dataclass(frozen=True, slots=True)
class BucketOutput:
    """Results of a forward pass; replaying any graph of the model overwrites them.

    Attributes:
        logits: Logits, [rows, columns, vocab].
        states: Captured hidden states; None if the caller reads none.
    """

    logits: Tensor
    states: CapturedStates | None
