"""Look up the peak rates of devices, taken from their vendors' data sheets.

devices.json contains the figures and their sources. NVIDIA's data sheets list tensor-core FLOP/s
with sparsity, so the file contains half of these values. The 16-bit figures are for accumulation
in float32, as in torch. The float32 figures are for ordinary cores instead of tensor cores,
because torch does not use TF32 by default.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from paceline.errors import ConfigError, did_you_mean
from paceline.plan.roofline import Peak

MEASURED = "measured"  # the hardware name that stands for this machine
_DEVICES = Path(__file__).with_name("devices.json")


@dataclass(frozen=True, slots=True)
class Hardware:
    """The peak rates and the memory of one device.

    Attributes:
        title: Full name.
        flops: FLOP/s of dense matrix products by dtype name.
        bandwidth: Memory bandwidth in bytes/s.
        memory: Memory size in bytes.
        source: Source of the figures.
    """

    title: str
    flops: Mapping[str, float]
    bandwidth: float
    memory: float
    source: str

    def peak(self, dtype: str, devices: int = 1) -> Peak:
        """Return the combined peak rates of several devices, ignoring communication.

        Raises:
            ConfigError: The device has no figure for this dtype.
        """
        if dtype not in self.flops:
            raise ConfigError(
                f"plan: dtype: got {dtype!r}; expected one that {self.title} computes in:"
                f" {', '.join(self.flops)}."
            )
        return Peak(devices * self.flops[dtype], devices * self.bandwidth)


def _read_devices() -> dict[str, Hardware]:
    """Return the devices in devices.json; the units are FLOP/s, bytes/s and bytes."""
    devices = {}
    for name, entry in json.loads(_DEVICES.read_text(encoding="utf-8")).items():
        flops = {dtype: teraflops * 1e12 for dtype, teraflops in entry["teraflops"].items()}
        devices[name] = Hardware(
            entry["title"],
            MappingProxyType(flops),
            entry["gigabytes_per_second"] * 1e9,
            entry["gigabytes"] * 1e9,
            entry["source"],
        )
    return devices


HARDWARE = _read_devices()


def find_hardware(name: str) -> Hardware:
    """Return a device by its name.

    Raises:
        ConfigError: There is no device with this name; the message names the closest match.
    """
    hardware = HARDWARE.get(name.lower())
    if hardware is None:
        hint = did_you_mean(name.lower(), [*HARDWARE, MEASURED])
        raise ConfigError(f"plan: hardware: got {name!r}.{hint}")
    return hardware
