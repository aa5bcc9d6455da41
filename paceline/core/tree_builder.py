"""Build a draft tree from paths, merging common prefixes."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.core.origin import Origin
from paceline.core.tree import DraftTree


class TreeBuilder:
    """Merges paths with common prefixes into one tree with at most `max_nodes` nodes.

    Probe nodes (`add_probe`) are added after all other nodes. They are never accepted: the target
    only computes the token that follows each of them.
    """

    def __init__(self, max_nodes: int) -> None:
        self.max_nodes = max_nodes
        self.token_ids: list[int] = []
        self.parents: list[int] = []
        self.origins: list[int] = []
        self._child: dict[tuple[int, int], int] = {}
        self._probes = 0

    def __len__(self) -> int:
        return len(self.token_ids)

    def __contains__(self, edge: tuple[int, int]) -> bool:
        """Return whether the edge (parent, token) exists."""
        return edge in self._child

    def add(self, token: int, parent: int, origin: Origin = Origin.DRAFT) -> int:
        """Return the child of `parent` that has this token; add the child if necessary.

        If the child does not exist and the tree is full, return `parent`.
        """
        node = self._child.get((parent, token))
        if node is not None:
            return node
        return parent if len(self.token_ids) >= self.max_nodes else self._new(token, parent, origin)

    def add_probe(self, token: int, parent: int, origin: Origin = Origin.DRAFT) -> int:
        """Add a node that is never accepted; its token may equal a sibling's.

        The target only computes the token that follows the node. The caller must not exceed
        `max_nodes`.
        """
        self.token_ids.append(token)
        self.parents.append(parent)
        self.origins.append(origin)
        self._probes += 1
        return len(self.token_ids) - 1

    def add_path(
        self, token_ids: Sequence[int], parent: int = -1, origin: Origin = Origin.DRAFT
    ) -> int:
        """Add a path below `parent`, and return the last node that fits.

        Existing nodes are reused.

        Args:
            token_ids: Tokens of the path.
            parent: Node to which the path is attached.
            origin: Source of the new nodes.
        """
        for token in token_ids:
            node = self._child.get((parent, token))
            if node is None:
                if len(self.token_ids) >= self.max_nodes:
                    break
                node = self._new(token, parent, origin)
            parent = node
        return parent

    def _new(self, token: int, parent: int, origin: Origin) -> int:
        node = self._child[parent, token] = len(self.token_ids)
        self.token_ids.append(token)
        self.parents.append(parent)
        self.origins.append(origin)
        return node

    def build(self) -> DraftTree:
        """Return a tree of the nodes added so far."""
        return DraftTree(self.token_ids, self.parents, probes=self._probes, origins=self.origins)
