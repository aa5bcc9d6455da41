"""Define constants for choosing between torch's and paceline's matrix products."""

from __future__ import annotations

MAX_ROWS = 1 << 40
"""Number of rows that means any number of rows."""

MAX_HELPER_NUMBERS = 1 << 15
"""Numbers of a forward's widest layer below which helper threads may spin.

With more numbers torch's own operations share their work among all threads.
"""

MAX_HELPERS = 7
"""Most helper threads of a forward: a handful of cores read memory as fast as all of them."""

MIN_HEAD_RATIO = 16
"""Outputs per input from which a product counts as the LM head.

No operation of torch follows it, so that its width does not count for the helpers.
"""


MIN_TIMED_WEIGHTS = 1 << 25
"""Weights from which the products of a model are timed.

A smaller model stays in the caches of the processor, and torch's kernels do as well there.
"""

TIMED_ROWS = (1, 4, 16, 64, 256)
"""Numbers of rows that are timed; the last represents any larger number."""

MIN_TIMED_NUMBERS = 1 << 27
"""Weights of one shape that are multiplied in turn, in numbers: fewer would stay in a cache."""

MIN_MANY_ROWS, MAX_WIDE_WEIGHTS = 64, 1 << 24
"""From this number of rows, modules with so many weights or more are not timed.

Heads of a vocabulary get few rows.
"""

NUM_ROUNDS, NUM_MANY_ROUNDS = 3, 8
"""Repeats of a timing, of which the shortest counts; with many rows a repeat is soon disturbed."""

TIE_RATIO = 1.03
"""Maximum ratio of paceline's time to torch's at which both count as equally fast."""

ANSWER_STEPS = 64
"""Steps of the answer for which the cost is estimated, after a prompt of 256 tokens."""

MAX_INT8_ROWS = 16
"""Rows up to which a draft model uses 8-bit weights on a processor with matrix instructions (AMX).

The instructions multiply 16 rows at once; more rows take less time in bfloat16.
"""

SIZE_MULTIPLE = 8
"""Inputs and outputs of small weights are padded with zeros to a multiple of this number."""

MAX_PADDED_WEIGHTS = 1 << 20
"""Most numbers of a weight that is filled up: each call copies the weight."""
