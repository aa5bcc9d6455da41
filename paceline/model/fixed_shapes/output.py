"""Define the results of a forward pass with a fixed shape."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from paceline.model.eagle.captured_states import CapturedStates


class BucketOutput(NamedTuple):
    """Results of a forward pass; replaying any graph of the model overwrites them.

    Attributes:
        logits: Logits, [rows, columns, vocab].
        states: Captured hidden states; None if the caller reads none.
        top: Columns of the most likely tokens in the logits, int64, and their probabilities,
            float32; each [rows, columns, tokens]. None if the caller wants none.
    """

    logits: Tensor
    states: CapturedStates | None = None
    top: tuple[Tensor, Tensor] | None = None
