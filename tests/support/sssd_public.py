"""Plain version of SSSD's public code, the reference for `fusion=paper`.

It uses one trie of the request's windows and one of the datastore's continuations. It is slow and
independent of the package. A tree has `nodes` nodes in addition to its root.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field

# Tokens of the query, of a window of the request, and of the prompt that belong to the output.
PREFIX, WINDOW, BORDER = (4, 8, 3)
# Most continuations of one datastore suffix, and the number at which the search stops.
ENTRIES, ENOUGH = 100, 50
SCALE, DAMPENING, PER_MATCH = 0.6, 0.6, 0.1

Draft = dict[int, "Draft"]


@dataclass
class Trie:
    """Trie that counts token sequences."""

    count: int = 0
    children: dict[int, Trie] = field(default_factory=dict)

    def insert(self, tokens: Sequence[int]) -> None:
        """Count a sequence and its prefixes."""
        self.count += 1
        if tokens:
            self.children.setdefault(tokens[0], Trie()).insert(tokens[1:])

    def behind(self, tokens: Sequence[int]) -> Trie:
        """Return the trie of what follows a sequence, which may be empty."""
        node = self
        for token in tokens:
            node = node.children.get(token, Trie())
        return node


class Store:
    """All suffixes of some documents, sorted, with the length of a query and a branch."""

    def __init__(self, documents: Sequence[Sequence[int]]) -> None:
        reach = PREFIX + 10
        self._suffixes = sorted(
            tuple(document[i : i + reach]) for document in documents for i in range(len(document))
        )

    def continuations(self, query: Sequence[int], length: int) -> Trie:
        """Return continuations of the query and its suffixes, longest first.

        They are sampled at regular intervals, with up to `length` tokens each.
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
    """The windows of a prompt, and the complete windows of its output."""

    def __init__(self, prompt: Sequence[int]) -> None:
        self.windows = Trie()
        border = max(0, len(prompt) - BORDER)
        for begin in range(border):
            self.windows.insert(prompt[begin : begin + WINDOW])
        self._rest = list(prompt[border:])

    def append(self, tokens: Sequence[int]) -> None:
        """Append output tokens."""
        self._rest += tokens
        while len(self._rest) >= WINDOW:
            self.windows.insert(self._rest[:WINDOW])
            del self._rest[0]


def branch_length(nodes: int) -> int:
    """Return the largest number of tokens of a continuation."""
    return next(
        length
        for most, length in ((2, 1), (5, nodes - 1), (8, 5), (32, 6), (48, 8), (nodes, 10))
        if nodes <= most
    )


def draft(request: Request, store: Store, query: Sequence[int], nodes: int) -> Draft:
    """Return the draft tree of algorithm 1.

    One heap covers all source trees: the most likely node first, then the deepest.
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

    order: list[int] = []  # its length numbers the entries, which breaks ties
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
    """Return the mean number of tokens per step for recorded outputs."""
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
