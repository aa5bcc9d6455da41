"""Define the sizes that plans show, and the values from the SSSD paper."""

from __future__ import annotations

from paceline.plan.roofline import Matmul, Peak, Shapes

# s_q, query tokens per request
SIZES = (
    1,
    2,
    3,
    4,
    6,
    8,
    12,
    16,
    24,
    32,
    48,
    64,
    96,
    128,
    192,
    256,
)
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)

# The device and the model of Marzollo et al. 2024, section 3.2.1: Ascend 910B4 and Llama-2 7B.
ASCEND = Peak(280e12, 0.8e12)
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

# Page of the figures: width and height in inches, and characters of a title line.
PAGE_INCHES = (13.0, 4.6)
TITLE_COLUMNS = 165
