"""SSSD's public code as it is specified, in plain Python: a trie of the request's windows, one of
the datastore's continuations.

Slow and independent of the package: what `fusion=paper` is held against. A tree has `nodes` nodes
besides its root.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field

# tokens of the query, of a window of the request, of the prompt that belong to the output
PREFIX, WINDOW, BORDER = (4, 8, 3)
ENTRIES, ENOUGH = 100, 50  # of the datastore: continuations of one suffix, and how many are enough
SCALE, DAMPENING, PER_MATCH = 0.6, 0.6, 0.1

Draft = dict[int, "Draft"]


@dataclass
class Trie:
    """Counts of token sequences."""

    count: int = 0
    children: dict[int, Trie] = field(default_factory=dict)

    def insert(self, tokens: Sequence[int]) -> None:
        """Count a sequence and what it begins with."""
        self.count += 1
        if tokens:
            self.children.setdefault(tokens[0], Trie()).insert(tokens[1:])

    def behind(self, tokens: Sequence[int]) -> Trie:
        """What follows a sequence; an empty trie if nothing does."""
        node = self
        for token in tokens:
            node = node.children.get(token, Trie())
        return node


class Store:
    """All suffixes of some documents, sorted as far as a query and a branch reach."""

    def __init__(self, documents: Sequence[Sequence[int]]) -> None:
        reach = PREFIX + 10
        self._suffixes = sorted(
            tuple(document[i : i + reach]) for document in documents for i in range(len(document))
        )

    def continuations(self, query: Sequence[int], length: int) -> Trie:
        """Of the query and its shorter suffixes until there are enough; at regular intervals, up
        to `length` tokens each.
        """
        trie = Trie()
        for size in range(len(query), 0, -1):
            suffix = tuple(query[-size:])
            low, high = (
                bisect_left(self._suffixes, suffix),
                bisect_left(self._suffixes, (*suffix[:-1], suffix[-1] + 1)),
            )
            taken = min(ENTRIES, high - low)
            for index in range(taken):
                entry = self._suffixes[low + index * (high - low) // taken]
                if len(entry) > size:
                    trie.insert(entry[size : size + length])
            if trie.count >= ENOUGH:
                break
        return trie


class Request:
    """The windows of a prompt, and those of the output that are complete."""

    def __init__(self, prompt: Sequence[int]) -> None:
        self.windows = Trie()
        border = max(0, len(prompt) - BORDER)
        for begin in range(border):
            self.windows.insert(prompt[begin : begin + WINDOW])
        self._rest = list(prompt[border:])

    def append(self, tokens: Sequence[int]) -> None:
        """More output."""
        self._rest += tokens
        while len(self._rest) >= WINDOW:
            self.windows.insert(self._rest[:WINDOW])
            del self._rest[0]


def branch_length(nodes: int) -> int:
    """Most tokens of a continuation."""
    return next(
        length
        for most, length in ((2, 1), (5, nodes - 1), (8, 5), (32, 6), (48, 8), (nodes, 10))
        if nodes <= most
    )


def draft(request: Request, store: Store, query: Sequence[int], nodes: int) -> Draft:
    """Algorithm 1: one heap over all source trees, the most likely first and of those the
    deeper.
    """
    sources = [(0, store.continuations(query, branch_length(nodes)))]
    sources += [
        (match, request.windows.behind(query[-match:])) for match in range(len(query), 0, -1)
    ]
    tree: Draft = {}
    heap: list[tuple[float, int, int, int, int, Trie, Draft]] = []

    def push(node: Trie, source: int, likely: float, depth: int, parent: Draft) -> None:
        for token, child in node.children.items():
            entry = (
                -likely * child.count / node.count,
                -depth,
                len(order),
                token,
                source,
                child,
                parent,
            )
            order.append(token)
            heapq.heappush(heap, entry)

    order: list[int] = []  # of the entries, to tell equals apart
    for source, node in sources:
        push(node, source, SCALE if source else 1.0, 1, tree)
    size = 0
    while heap and size < nodes:
        likely, depth, _, token, source, child, parent = heapq.heappop(heap)
        size += token not in parent
        below = parent.setdefault(token, {})
        push(
            child,
            source,
            -likely * (DAMPENING + PER_MATCH * source if source else 1.0),
            1 - depth,
            below,
        )
    return tree


def tokens_per_step(
    traces: Sequence[tuple[Sequence[int], Sequence[int]]], store: Store, nodes: int
) -> float:
    """Recorded answers said by steps of a draft and a bonus each."""
    steps = 0
    for prompt, output in traces:
        request, text, at = Request(prompt), [*prompt, *output], len(prompt)
        while at < len(text):
            node, begin = draft(request, store, text[max(0, at - PREFIX) : at], nodes), at
            while at < len(text) - 1 and text[at] in node:
                node, at = node[text[at]], at + 1
            at += 1
            request.append(text[begin:at])
            steps += 1
    return sum(len(output) for _, output in traces) / steps
