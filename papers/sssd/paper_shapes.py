"""Define the device and the model of Marzollo et al. 2024, section 3.2.1."""

from __future__ import annotations

from papers.sssd.roofline import Matmul, Peak, Shapes

ASCEND = Peak(280e12, 0.8e12)  # Ascend 910B4
LLAMA_2_7B = Shapes(
    hidden=4096,
    layers=32,
    heads=32,
    kv_heads=32,
    head_size=128,
    width=2,
    matmuls=(
        *(Matmul(name, 4096, 4096, 32) for name in ("q_proj", "k_proj", "v_proj", "o_proj")),
        *(Matmul(name, 4096, 11008, 32) for name in ("gate_proj", "up_proj")),
        Matmul("down_proj", 11008, 4096, 32),
        Matmul("lm_head", 4096, 32000, 1),
    ),
)
