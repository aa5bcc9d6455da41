"""Define constants of the CUDA backend."""

from __future__ import annotations

import torch

# Largest size of a norm that one program holds in its registers.
MAX_NORM_SIZE = 16384

# Numbers of a row per warp of a norm.
NUMBERS_PER_WARP = 512

# Largest difference, relative to the result, of a norm that may be replaced.
NORM_TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 2**-7, torch.float16: 2**-10}
