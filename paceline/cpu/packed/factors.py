"""Convert the integers of quantised blocks to numbers, using scales and minimums."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from paceline.cpu.emit import floats, multiply_add, pick


class Factor(NamedTuple):
    """The scales, or the minimums, of several blocks of weights.

    The factor of block b is vector[lanes[b]].

    Attributes:
        vector: LLVM vector of float32 numbers that contains the factors of all blocks.
        lanes: For each block, the lane of `vector` that contains the block's factor.
    """

    vector: Any
    lanes: tuple[int, ...]

    def spread(self, builder: Any, blocks: Sequence[int]) -> Any:
        """Emit instructions that build a vector of the factors of given blocks.

        Lane i of the result contains the factor of block blocks[i].

        Args:
            builder: LLVM builder.
            blocks: Index of the block for each lane of the result, [16].
        """
        return pick(builder, self.vector, self.vector, [self.lanes[block] for block in blocks])


class Factors(NamedTuple):
    """The scales and minimums of several blocks in the same format.

    A block consists of half parts of 16 consecutive numbers. Consecutive half parts with the same
    scale and minimum form a group. A block may have several groups.

    Attributes:
        scales: One `Factor` per group, which contains the group's scale in each block.
        minimums: One `Factor` per group, which contains the group's minimum in each block. Empty if
            the format has no minimums.
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
            half: Index, within a block, of the half part to which the integers belong.
            blocks: Index of the block to which each integer belongs, [16].
        """
        index = half // self.group
        scale = self.scales[index].spread(builder, blocks)
        if not self.minimums:
            return builder.fmul(scale, integers)
        return multiply_add(builder, scale, integers, self.minimums[index].spread(builder, blocks))
