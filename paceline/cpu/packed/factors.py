"""Convert the integers of quantised blocks to numbers, using scales and minimums."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from paceline.cpu.emit import floats, multiply_add, pick


class Factor(NamedTuple):
    """The scales, or the minimums, of several blocks of weights.

    Attributes:
        vector: LLVM vector of float32 numbers that contains the factor of each block.
        lanes: Lane of `vector` that contains each block's factor.
    """

    vector: Any
    lanes: tuple[int, ...]

    def spread(self, builder: Any, blocks: Sequence[int]) -> Any:
        """Emit instructions that copy the factors of blocks to the lanes of a vector.

        Args:
            builder: LLVM builder.
            blocks: Index of the block whose factor each lane receives, [16].
        """
        return pick(builder, self.vector, self.vector, [self.lanes[block] for block in blocks])


class Factors(NamedTuple):
    """The scales and minimums of several blocks in the same format.

    A half part is 16 consecutive numbers of a block. Consecutive half parts with the same scale and
    minimum form a group.

    Attributes:
        scales: Scales of all blocks, for each group of half parts.
        minimums: Minimums of all blocks, for each group. Empty if the format has no minimums.
        group: Number of half parts in a group.
    """

    scales: Sequence[Factor]
    minimums: Sequence[Factor]
    group: int

    def scaled(self, builder: Any, power: float) -> Factors:
        """Emit instructions that multiply the scales by a power of two, without rounding."""
        scales = [
            Factor(builder.fmul(vector, floats(power, vector.type.count)), lanes)
            for vector, lanes in self.scales
        ]
        return self._replace(scales=scales)

    def apply(self, builder: Any, integers: Any, half: int, blocks: Sequence[int]) -> Any:
        """Emit instructions that compute scale * integer + minimum for 16 integers.

        Args:
            builder: LLVM builder.
            integers: Integers, as a vector of 16 float32 lanes.
            half: Index of the half part to which the integers belong.
            blocks: Index of the block to which each lane belongs, [16].
        """
        index = half // self.group
        scale = self.scales[index].spread(builder, blocks)
        if not self.minimums:
            return builder.fmul(scale, integers)
        return multiply_add(builder, scale, integers, self.minimums[index].spread(builder, blocks))
