"""Define constants of the CUDA backend."""

from __future__ import annotations

import torch

# Number of times that a function runs before it is captured as a graph. The first call compiles
# kernels, and some shapes occur only once.
CALLS_BEFORE_CAPTURE = 1

# Maximum row size of a norm, limited by the registers of one program.
MAX_NORM_SIZE = 16384

# Number of row elements per warp in the norm kernel.
NUMBERS_PER_WARP = 512

# Maximum relative difference between a module's result and the kernel's. The kernel replaces only
# modules within this tolerance.
NORM_TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 2**-7, torch.float16: 2**-10}
