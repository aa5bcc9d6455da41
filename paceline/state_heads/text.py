"""Describe the texts and draft nodes in a head's KV cache."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor

ROOT = -1  # Index of the root: the newest token of a text.


class HeadNode(NamedTuple):
    """A draft node after which a draft head predicts tokens.

    Attributes:
        node: Index of the node; `ROOT` for the newest token of the text.
        token: Id of the node's token.
        path: Indices of the nodes from the first tree level down to this node; empty for the root.
    """

    node: int
    token: int
    path: tuple[int, ...]

    @property
    def parent(self) -> int:
        """Index of the parent node; `ROOT` for a node in the first level."""
        return self.path[-2] if len(self.path) > 1 else ROOT

    @property
    def depth(self) -> int:
        """Number of levels from the root down to this node."""
        return len(self.path)


@dataclass(slots=True, eq=False)
class HeadText:
    """The text of one request in the KV cache of a draft head.

    The cache slot contains the tokens for which the target's hidden states are known, followed by
    draft nodes.

    Attributes:
        slot: Index of the cache slot.
        first: Text position of the first cached token.
        length: Number of cached tokens, without draft nodes.
        offsets: Cache position of each node, by node index; positions are counted from the end of
            the text.
        outputs: Output of the head at each node, by node index; `ROOT` is the newest token.
    """

    slot: int
    first: int = 0
    length: int = 0
    offsets: dict[int, int] = field(default_factory=dict)
    outputs: dict[int, Tensor] = field(default_factory=dict)

    @property
    def end(self) -> int:
        """Text position after the last cached token."""
        return self.first + self.length

    def restart(self, first: int) -> None:
        """Discard all cached tokens; the next token will be at text position `first`."""
        self.first, self.length = first, 0
        self.drop_nodes()
        self.outputs.clear()

    def drop_nodes(self) -> None:
        """Discard all draft nodes and their outputs."""
        self.offsets.clear()
        self.outputs = {node: row for node, row in self.outputs.items() if node == ROOT}
