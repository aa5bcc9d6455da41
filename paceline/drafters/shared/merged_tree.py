"""Grow one draft tree best first from all sources of draft tokens.

The sources are cached distributions (Token Recycling), another drafter's tree, the tokens of the
draft head, and a draft model's tree:

drafted: 7 - 4        cached: after the root 7 (0.6) and 9 (0.3), after "7" 5 (0.8)

tree = [root]                       frontier = [7 (both): 0.7, 9 (cached): 0.25]
take 7, add its children            frontier = [7-5 (cached): 0.5, 9: 0.25, 7-4 (drafted): 0.2]
take 7-5, ...                       until the tree is full, or no candidate is likely enough
"""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paceline.core.origin import Origin
from paceline.core.tree import IntArray
from paceline.drafters.shared.recycled import ABSENT, TOP, SuccessorTable, look_up
from paceline.drafters.shared.source_calibration import (
    SourceCalibration,
    cell_of,
    cell_of_asked,
    count_trial,
)
from paceline.drafters.shared.table_settings import LONGEST_KEY
from paceline.util.compiled import Records, compiled, kernel, record_dtype

_RECYCLED = int(Origin.RECYCLED)
_ROOM_EACH, _ROOM = 2 * TOP, 64  # frontier size: per node, and constant


class TreeCandidate:
    """Describe a token on the frontier or in the tree."""

    token: int
    parent: int  # -1 = the root
    depth: int  # a child of the root has 1
    drafted: int  # node in the drafted tree, or ABSENT
    head_draft: int  # node in the draft head's tree, or ABSENT
    modelled: int  # node in the draft model's tree, or ABSENT
    cell: int  # cell of the first two sources, or ABSENT
    beside: int  # cell of the draft head, or ABSENT
    asked: int  # cell of the draft model, or ABSENT
    confidence: float  # given the parent
    path_confidence: float
    known: Annotated[int, np.int32]  # number of valid tokens in `tail`
    origin: Annotated[int, np.int32]  # origin of the most confident source
    tail: Annotated[Any, np.int64, LONGEST_KEY]  # newest tokens, ending with this one


GUESS = record_dtype(TreeCandidate)


class Drafted(NamedTuple):
    """Hold the tree of one source.

    Attributes:
        token_ids: [n] token ids.
        parents: [n] parent nodes; -1 is the root.
        confidence: [n] acceptance probability given the parent.
        origins: [n] origins of the tokens.
    """

    token_ids: IntArray
    parents: IntArray
    confidence: Any
    origins: NDArray[np.int8]


@compiled
def grow(
    table: SuccessorTable,
    chances: SourceCalibration,
    drafted: Drafted,
    head_draft: Drafted,
    modelled: Drafted,
    newest: IntArray,
    keys: int,
    temperature: float,
    levels: int,
    least: float,
    tree: Records[TreeCandidate],
) -> int:
    """Grow a tree best first and return its size.

    Args:
        newest: up to LONGEST_KEY tokens, the root's the last. keys: most tokens of a key.
        temperature: of the request; 0 = greedy. levels: most levels.
        least: chance of a path below which nothing is taken.
        tree: [most nodes], filled in the order taken: each path's chance is at most that of the one
            before.
    """
    most = len(tree)
    others = len(drafted.token_ids) + len(head_draft.token_ids) + len(modelled.token_ids)
    frontier = np.empty(_ROOM + _ROOM_EACH * most + others, dtype=GUESS)
    tail = np.empty(LONGEST_KEY, dtype=np.int64)
    tail[LONGEST_KEY - len(newest) :] = newest
    scratch = np.empty(TOP)
    waiting = _offer(
        table,
        chances,
        drafted,
        head_draft,
        modelled,
        tail,
        len(newest),
        keys,
        temperature,
        -1,
        0,
        -1,
        -1,
        -1,
        1.0,
        frontier,
        0,
        scratch,
    )
    size = 0
    while size < most and waiting > 0:
        best = 0
        for index in range(1, waiting):
            if frontier[index].path_confidence > frontier[best].path_confidence:
                best = index
        if frontier[best].path_confidence < least:
            break
        tree[size] = frontier[best]
        waiting -= 1
        frontier[best] = frontier[waiting]
        node = tree[size]
        if node.depth < levels and size + 1 < most:
            waiting = _offer(
                table,
                chances,
                drafted,
                head_draft,
                modelled,
                node.tail,
                node.known,
                keys,
                temperature,
                size,
                node.depth,
                node.drafted,
                node.head_draft,
                node.modelled,
                node.path_confidence,
                frontier,
                waiting,
                scratch,
            )
        size += 1
    return size


@kernel
def _offer(
    table: SuccessorTable,
    chances: SourceCalibration,
    drafted: Drafted,
    head_draft: Drafted,
    modelled: Drafted,
    tail: IntArray,
    known: int,
    keys: int,
    temperature: float,
    parent: int,
    depth: int,
    base: int,
    foreseen_base: int,
    model_base: int,
    path_confidence: float,
    frontier: Records[TreeCandidate],
    waiting: int,
    scratch: Any,
) -> int:
    """Put what may follow a node on the frontier; return how many wait now.

    Args:
        base, foreseen_base, model_base: the node in each of the three trees, -1 = the root. Nodes
            that are not there have `parent` >= 0 and ABSENT.
    """
    first = waiting
    place, size = look_up(table, tail, min(keys, known))
    if place != ABSENT:
        entry = table.entries[place]
        _at_temperature(entry.probs, entry.size, temperature, scratch)
        for index in range(entry.size):
            guess = frontier[waiting]
            guess.token, guess.drafted, guess.origin = entry.tokens[index], ABSENT, _RECYCLED
            guess.cell = cell_of(temperature > 0, size, scratch[index], -1.0)
            waiting += 1
    kept = waiting
    if parent < 0 or base >= 0:
        for node in range(len(drafted.token_ids)):
            if drafted.parents[node] != base or waiting == len(frontier):
                continue
            found = waiting
            for index in range(first, kept):
                if frontier[index].token == drafted.token_ids[node]:
                    found = index
                    break
            chance = 0.0 if found == waiting else scratch[found - first]
            guess = frontier[found]
            guess.token, guess.drafted = drafted.token_ids[node], node
            if found == waiting or drafted.confidence[node] > chance:
                guess.origin = drafted.origins[node]
            guess.cell = cell_of(
                temperature > 0, 0 if found == waiting else size, chance, drafted.confidence[node]
            )
            waiting += found == waiting
    for index in range(first, waiting):
        guess = frontier[index]
        guess.head_draft, guess.beside, guess.modelled, guess.asked = ABSENT, ABSENT, ABSENT, ABSENT
        guess.confidence = chances.hits[guess.cell] / chances.trials[guess.cell]
    if parent < 0 or foreseen_base >= 0:
        waiting = _weigh(
            chances, head_draft, True, temperature > 0, foreseen_base, frontier, first, waiting
        )
    if parent < 0 or model_base >= 0:
        waiting = _weigh(
            chances, modelled, False, temperature > 0, model_base, frontier, first, waiting
        )
    for index in range(first, waiting):
        guess = frontier[index]
        guess.parent, guess.depth = parent, depth + 1
        guess.path_confidence = path_confidence * guess.confidence
        guess.known = min(known + 1, LONGEST_KEY)
        for step in range(LONGEST_KEY - 1):
            guess.tail[step] = tail[step + 1]
        guess.tail[LONGEST_KEY - 1] = guess.token
    return waiting


@kernel
def _weigh(
    chances: SourceCalibration,
    said: Drafted,
    head_draft: bool,
    sampled: bool,
    base: int,
    frontier: Records[TreeCandidate],
    first: int,
    waiting: int,
) -> int:
    """Weigh the children of one node by the draft head or the draft model.
    draft model says there; return how many wait now."""
    others, asked = waiting, False
    for node in range(len(said.token_ids)):
        if said.parents[node] != base or waiting == len(frontier):
            continue
        found, asked = waiting, True
        for index in range(first, others):
            if frontier[index].token == said.token_ids[node]:
                found = index
                break
        guess = frontier[found]
        if found == waiting:
            guess.token, guess.drafted, guess.cell, guess.confidence = (
                said.token_ids[node],
                ABSENT,
                ABSENT,
                0.0,
            )
            guess.head_draft, guess.beside, guess.modelled, guess.asked = (
                ABSENT,
                ABSENT,
                ABSENT,
                ABSENT,
            )
            guess.origin = said.origins[node]
            waiting += 1
        if head_draft:
            guess.head_draft = node
        else:
            guess.modelled = node
        if said.confidence[node] >= guess.confidence:
            guess.origin = said.origins[node]
    if asked:
        for index in range(first, waiting):
            guess = frontier[index]
            at = guess.head_draft if head_draft else guess.modelled
            cell = cell_of_asked(
                head_draft, sampled, guess.confidence, -1.0 if at == ABSENT else said.confidence[at]
            )
            if head_draft:
                guess.beside = cell
            else:
                guess.asked = cell
            guess.confidence = chances.hits[cell] / chances.trials[cell]
    return waiting


@kernel
def _at_temperature(probs: Any, count: int, temperature: float, out: Any) -> None:
    """Rescale probabilities of temperature 1 to another temperature.

    Greedy requests keep the probabilities of temperature 1.
    """
    total = 0.0
    for index in range(count):
        out[index] = probs[index] ** (1.0 / temperature) if temperature > 0 else probs[index]
        total += out[index]
    if temperature > 0 and temperature != 1.0:
        for index in range(count):
            out[index] /= max(total, 1e-30)


@compiled
def learn(
    chances: SourceCalibration, tree: Records[TreeCandidate], size: int, emitted: IntArray
) -> None:
    """Count the candidates that the target has decided.

    These are all children of the nodes it passed, whether the engine processed them or not.
    """
    parent = -1
    for place in range(len(emitted)):
        passed = ABSENT
        for node in range(size):
            if tree[node].parent == parent:
                right = tree[node].token == emitted[place]
                if tree[node].cell != ABSENT:
                    count_trial(chances, tree[node].cell, right)
                if tree[node].beside != ABSENT:
                    count_trial(chances, tree[node].beside, right)
                if tree[node].asked != ABSENT:
                    count_trial(chances, tree[node].asked, right)
                if right:
                    passed = node
        if passed == ABSENT:
            return
        parent = passed
