"""Check the data type, device and weight format with which a model is loaded."""

from __future__ import annotations

from pathlib import Path

import torch

from paceline.errors import ConfigError, did_you_mean
from paceline.model.sources import packed_source

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def dtype_named(dtype: str | torch.dtype) -> torch.dtype | None:
    """Return the torch dtype for a name, or None for "auto".

    Raises:
        ConfigError: There is no dtype with this name.
    """
    if isinstance(dtype, torch.dtype) or dtype == "auto":
        return None if isinstance(dtype, str) else dtype
    if not isinstance(dtype, str) or dtype not in _DTYPES:
        raise ConfigError(
            f"\0dtype\0: got {dtype!r}.{did_you_mean(str(dtype), {'auto', *_DTYPES})}"
        )
    return _DTYPES[dtype]


def usable_device(device: str | torch.device) -> str | torch.device:
    """Check that a device exists, and return it; "auto" selects a GPU if there is one.

    Raises:
        ConfigError: This machine has no such device.
    """
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        if torch.device(device).type == "meta":
            raise RuntimeError("it has no memory")
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, ValueError, TypeError) as error:
        count = torch.cuda.device_count()
        devices = [
            "auto",
            "cpu",
            *(f"cuda:{index}" for index in range(count)),
            *["mps"] * torch.backends.mps.is_available(),
        ]
        raise ConfigError(
            f"\0device\0: got {str(device)!r}, which torch cannot use here; expected one of:"
            f" {', '.join(devices)}. Choose one."
        ) from error
    return device


def require_packing_possible(
    model: object, weights: str, dtype: str | torch.dtype, device: str | torch.device
) -> None:
    """Raise an error if a model's weights cannot be packed with these options."""
    start, torch_dtype = f"\0weights={weights!r}\0: got", dtype_named(dtype)
    if not isinstance(model, str | Path) or packed_source(model) is not None:
        got = "a GGUF file" if isinstance(model, str | Path) else "a loaded model"
        raise ConfigError(
            f"{start} {got}; expected the directory or hub id of a checkpoint. Leave the option"
            " out."
        )
    if torch_dtype not in (None, torch.bfloat16):
        raise ConfigError(
            f"{start} dtype={str(dtype)!r}; expected 'auto' or 'bfloat16', the data type of"
            " computations with packed weights. Leave dtype out."
        )
    if torch.device(usable_device(device)).type != "cpu":
        raise ConfigError(
            f"{start} device={str(device)!r}; expected 'cpu', the only device that computes with"
            " packed weights. Pass \0device='cpu'\0."
        )
