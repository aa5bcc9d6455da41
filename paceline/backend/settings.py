"""Define constants for choosing between torch's and paceline's matrix products."""

from __future__ import annotations

MAX_ROWS = 1 << 40
"""Row count that stands for any number of rows."""

MAX_HELPER_NUMBERS = 1 << 15
"""Maximum number of values in the widest layer of a forward pass for helper threads to spin.

With more values, torch's own operations divide their work among all threads.
"""

MAX_HELPERS = 7
"""Maximum number of helper threads; a few cores read memory as fast as all of them."""

HELPER_ROWS = (1, 8)
"""Row counts for which products are timed with different numbers of helper threads."""

MAX_HELPER_WEIGHTS = 1 << 26
"""Number of weights in these products; more than fit into a processor's caches."""

NUM_HELPER_ROUNDS = 5
"""Number of repeats of each of these timings, of which the median is used."""

MIN_HELPER_GAIN = 0.15
"""Minimum share of the products' time that helper threads must save, from 0 to 1.

Starting the helpers takes time in each step, and they slow down work on the same physical core.
"""

MIN_HEAD_RATIO = 16
"""Minimum ratio of outputs to inputs at which a product counts as the LM head.

No torch operation follows the LM head, so its width is ignored for `MAX_HELPER_NUMBERS`.
"""


MIN_TIMED_WEIGHTS = 1 << 25
"""Minimum number of weights in a model for its products to be timed.

Smaller models fit into the processor's caches, where torch's kernels are equally fast.
"""

TIMED_ROWS = (1, 4, 16, 64, 256)
"""Row counts that are timed; the last one represents all larger counts."""

MIN_TIMED_NUMBERS = 1 << 27
"""Minimum number of weights to cycle through per shape; fewer would stay in a cache."""

MIN_MANY_ROWS, MAX_WIDE_WEIGHTS = 64, 1 << 24
"""Minimum number of rows, and number of weights, from which a module is not timed.

Modules with this number of weights are LM heads, which process only a few rows.
"""

NUM_ROUNDS, NUM_MANY_ROUNDS = 3, 8
"""Number of repeats of a timing, for few and for many rows; the shortest time is used."""

TIE_RATIO = 1.03
"""Maximum ratio of paceline's time to torch's at which both count as equally fast."""

ANSWER_STEPS = 64
"""Number of decode steps in the cost estimate, which assumes a prompt of 256 tokens."""

SIZE_MULTIPLE = 8
"""Inputs and outputs of small weights are padded with zeros to a multiple of this number."""

MAX_PADDED_WEIGHTS = 1 << 20
"""Maximum number of values in a weight that is padded, because each call copies the weight."""

# Number of elements that torch computes at once in an activation function: at most two vectors of
# 32 bfloat16 numbers.
VECTOR_ELEMENTS = 64

# Number of elements above which torch divides an activation function among its threads.
ACTIVATION_GRAIN = 32768
