"""Tune the CPU kernels: block sizes, cache sizes and thresholds of work.

None of these values changes which numbers a kernel adds or in which order. Unless a comment says
otherwise, they were tuned on SmolLM2-135M (576 inputs, 1,536 wide) on two server processors with
AVX-512. Compiled code contains them: `CodeCache` compiles again when this file changes.
"""

from __future__ import annotations

# Thread team

# Polls without a job before a helper returns to the pool. A poll takes 10 to 40 ns.
MAX_SPINS = 1 << 18
