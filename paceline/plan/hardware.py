"""What devices can do, as their vendors say: FLOP/s of dense matrix products by dtype, bytes/s of memory traffic, memory.

NVIDIA's sheets name tensor cores' FLOP/s with sparsity; half of that is here. 16 bits accumulate in float32, as torch has it;
float32 is the plain cores' figure, since torch does not use TF32 unless told.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from paceline.errors import ConfigError, did_you_mean
from paceline.plan.roofline import ASCEND, Peak

MEASURED = "measured"  # the word for the machine at hand


@dataclass(frozen=True, slots=True)
class Hardware:
    """One device.

    Attributes:
        flops: FLOP/s of matrix products by the name of a dtype. bandwidth: bytes/s. memory: bytes.
        source: where the figures are from.
    """

    title: str
    flops: Mapping[str, float]
    bandwidth: float
    memory: float
    source: str

    def peak(self, dtype: str, devices: int = 1) -> Peak:
        """Return what `devices` of them can do together, if they need not wait for each other.

        Raises:
            ConfigError: no figure for that dtype.
        """
        if dtype not in self.flops:
            raise ConfigError(f"plan: dtype: got {dtype!r}; expected one that {self.title} computes in: {', '.join(self.flops)}.")
        return Peak(devices * self.flops[dtype], devices * self.bandwidth)


def _device(
    title: str, half: float, single: float, gigabytes_per_second: float, gigabytes: float, source: str, bfloat16: bool = True
) -> Hardware:
    """Teraflops of 16 and of 32 bits, then memory."""
    flops = {"float16": half * 1e12, **({"bfloat16": half * 1e12} if bfloat16 else {}), "float32": single * 1e12}
    return Hardware(title, MappingProxyType(flops), gigabytes_per_second * 1e9, gigabytes * 1e9, source)


HARDWARE = {
    "b200": _device("NVIDIA B200", 2250, 75, 8000, 180, "NVIDIA DGX B200 data sheet, an eighth of it"),
    "h200": _device("NVIDIA H200 SXM", 989.4, 67, 4800, 141, "NVIDIA H200 data sheet"),
    "h100": _device("NVIDIA H100 SXM", 989.4, 67, 3350, 80, "NVIDIA H100 data sheet"),
    "h100-pcie": _device("NVIDIA H100 PCIe", 756, 51, 2000, 80, "NVIDIA H100 PCIe data sheet"),
    "a100": _device("NVIDIA A100 SXM 80 GB", 312, 19.5, 2039, 80, "NVIDIA A100 80 GB data sheet"),
    "a100-40gb": _device("NVIDIA A100 SXM 40 GB", 312, 19.5, 1555, 40, "NVIDIA A100 data sheet"),
    "l40s": _device("NVIDIA L40S", 362.05, 91.6, 864, 48, "NVIDIA L40S data sheet"),
    "l4": _device("NVIDIA L4", 121, 30.3, 300, 24, "NVIDIA L4 data sheet"),
    "a10": _device("NVIDIA A10", 125, 31.2, 600, 24, "NVIDIA A10 data sheet"),
    "t4": _device("NVIDIA T4", 65, 8.1, 320, 16, "NVIDIA T4 data sheet", bfloat16=False),
    "v100": _device("NVIDIA V100 SXM2 32 GB", 125, 15.7, 900, 32, "NVIDIA V100 data sheet", bfloat16=False),
    "rtx5090": _device("NVIDIA GeForce RTX 5090", 209.5, 104.8, 1792, 32, "NVIDIA RTX Blackwell architecture paper"),
    "rtx4090": _device("NVIDIA GeForce RTX 4090", 165.2, 82.6, 1008, 24, "NVIDIA Ada architecture paper"),
    "rtx3090": _device("NVIDIA GeForce RTX 3090", 71, 35.6, 936, 24, "NVIDIA GA102 architecture paper"),
    "mi300x": _device("AMD Instinct MI300X", 1307.4, 163.4, 5300, 192, "AMD Instinct MI300X data sheet"),
    "ascend-910b4": Hardware(
        "Huawei Ascend 910B4", MappingProxyType({"float16": ASCEND.flops}), ASCEND.bandwidth, 32e9,
        "Marzollo et al. 2024, section 3.2.1; its memory: vendor",
    ),
}  # fmt: skip


def find_hardware(name: str) -> Hardware:
    """Return a device by its name.

    Raises:
        ConfigError: there is none of that name; the close match is named.
    """
    found = HARDWARE.get(name.lower())
    if found is None:
        raise ConfigError(f"plan: hardware: got {name!r}.{did_you_mean(name.lower(), [*HARDWARE, MEASURED])}")
    return found
