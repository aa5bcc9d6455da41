"""Send the inputs of a forward pass with a fixed shape to the device in one copy."""

from __future__ import annotations

from typing import Any

import torch


class UploadBuffer:
    """A buffer on the host, with a copy at a fixed address on the device.

    Args:
        size: Number of bytes.
        device: Device to which the bytes are sent.
    Attributes:
        host: Bytes on the host, uint8 [size]; on CUDA, in pinned memory.
        device: Bytes on the device, uint8 [size]; on a CPU, the same as `host`.
    """

    def __init__(self, size: int, device: torch.device) -> None:
        self._on_cuda = device.type == "cuda" and torch.cuda.is_available()
        with torch.inference_mode(False):
            self.host = torch.zeros(size, dtype=torch.uint8, pin_memory=self._on_cuda)
            self.device = (
                self.host if device.type == "cpu" else torch.zeros_like(self.host, device=device)
            )
        self._sent: Any = None

    def wait(self) -> None:
        """Wait until the last copy has finished reading the host's bytes."""
        if self._sent is not None:
            self._sent.synchronize()

    def send(self) -> None:
        """Start copying the bytes to the device, without waiting for the copy."""
        if self.device is self.host:
            return
        self.device.copy_(self.host, non_blocking=True)
        if self._on_cuda:
            self._sent = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._sent.record()
