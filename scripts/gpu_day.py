"""Measure paceline on one GPU, in parts of a few minutes each.

    python -u scripts/gpu_day.py                        # all parts
    python -u scripts/gpu_day.py attention forward      # some of them
    python -u scripts/gpu_day.py --smoke                # tiny sizes on the CPU: does it run?
    python scripts/gpu_day.py --predict rtx4090         # times and speeds, from peak rates
    python scripts/gpu_day.py --list-carry              # packages that a machine may lack
    python scripts/gpu_day.py --summary gpu-CARD.json   # one file of all results

Each part prints one line per measurement and writes PART.json to the folder --out. A later run
with the same folder skips the measurements with values and repeats those that failed. No
measurement starts after --minutes. `docs/guides/gpu.md` says how to send the results.
"""

from __future__ import annotations

import sys
from pathlib import Path

_SCRIPTS = Path(__file__).resolve().parent
sys.path[:0] = [str(_SCRIPTS), str(_SCRIPTS.parent)]  # paceline need not be installed

from gpu_parts.command import main  # noqa: E402

from paceline.util.garbage_collection import survivors_exempt  # noqa: E402

if __name__ == "__main__":
    with survivors_exempt():  # `free_memory` need not search the imported modules
        sys.exit(main(sys.argv[1:], __doc__ or ""))
