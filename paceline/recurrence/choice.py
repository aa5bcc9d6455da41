"""Choose between compiled recurrences and recurrences in torch."""

from __future__ import annotations

from torch import Tensor

from paceline.backend.plain_tensors import is_plain
from paceline.backend.recurrences import Recurrences
from paceline.recurrence.torch_recurrences import TORCH_RECURRENCES


def recurrences_for(rows: Tensor) -> Recurrences:
    """Return compiled recurrences for CPU tensors, and torch recurrences otherwise.

    On a CPU, dtypes without compiled code also use torch. The choice depends only on the device
    and dtype of `rows`, so all layers of a model use the same recurrences.

    Args:
        rows: Inputs of a recurrence.
    """
    if not is_plain(rows) or rows.device.type != "cpu":
        return TORCH_RECURRENCES
    from paceline.cpu.memory import KINDS  # a model on another device needs no compiled code

    if rows.dtype not in KINDS:
        return TORCH_RECURRENCES
    from paceline.cpu.recurrence.backend import CPU_RECURRENCES

    return CPU_RECURRENCES
