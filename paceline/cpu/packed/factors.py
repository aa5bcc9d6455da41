"""Apply the scales and minimums of quantised blocks to their integers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from paceline.cpu.emit import floats, multiply_add, pick


class Factor(NamedTuple):
    """A factor (scale or minimum) of each of several blocks of weights.

    Attributes:
        vector: LLVM vector of float32 numbers that contains the factors.
        lanes: For each block, the lane that holds its factor.
    """

    vector: Any
    lanes: tuple[int, ...]

    def spread(self, builder: Any, blocks: Sequence[int]) -> Any:
        """Emit instructions that fill 16 lanes, each with the factor of its block.

        Args:
            builder: LLVM builder.
            blocks: For each lane, the index of its block.
        """
        return pick(builder, self.vector, self.vector, [self.lanes[block] for block in blocks])


class Factors(NamedTuple):
    """The factors of several blocks of the same format.

    A half part is 16 numbers of a block.

    Attributes:
        scales: Scales, one for each group of half parts.
        minimums: Minimums, one for each group; empty if the format has no minimums.
        group: Number of consecutive half parts that share their factors.
    """

    scales: Sequence[Factor]
    minimums: Sequence[Factor]
    group: int

    def scaled(self, builder: Any, power: float) -> Factors:
        """Emit instructions that multiply the scales by a power of two, which is exact."""
        scales = [
            Factor(builder.fmul(vector, floats(power, vector.type.count)), lanes)
            for vector, lanes in self.scales
        ]
        return self._replace(scales=scales)

    def apply(self, builder: Any, integers: Any, half: int, blocks: Sequence[int]) -> Any:
        """Emit instructions that convert 16 integers to float32 numbers.

        Args:
            builder: LLVM builder.
            integers: The integers, as 16 float32 lanes.
            half: Index of the half part (16 numbers) in the blocks.
            blocks: For each lane, the index of its block.
        """
        index = half // self.group
        scale = self.scales[index].spread(builder, blocks)
        if not self.minimums:
            return builder.fmul(scale, integers)
        return multiply_add(builder, scale, integers, self.minimums[index].spread(builder, blocks))
