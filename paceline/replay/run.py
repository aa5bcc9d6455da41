"""Recorded answers run through a drafter without a model: a scripted target that says what was recorded.

Each step is one of `decode_step`: the drafter proposes, the longest path of its tree that the record confirms is accepted,
the next recorded token is the bonus, the drafter observes. The first step guesses from the prompt alone; prefill has no step
of its own.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from collections.abc import Sequence as ListLike
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from paceline.common.config import require_count
from paceline.engine.drafter import Drafter, Outcome, TopTokens, require_drafter
from paceline.engine.sequence import SamplingParams, Sequence
from paceline.engine.tree import DraftTree
from paceline.errors import ConfigError

Trace = tuple[ListLike[int], ListLike[int]]


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """Counts of one replay; a step is one forward of the target for one sequence.

    Attributes:
        tokens: recorded tokens that were said. drafted, accepted: draft tokens. steps: of all sequences.
        seconds: spent in the drafter.
    """

    max_nodes: int
    batch_size: int
    tokens: int
    steps: int
    drafted: int
    accepted: int
    seconds: float

    @property
    def tokens_per_step(self) -> float:
        """Return the tokens said per step, the bonus included; plain decoding has exactly 1."""
        return self.tokens / max(1, self.steps)

    @property
    def accepted_per_step(self) -> float:
        """Return the draft tokens accepted per step."""
        return self.accepted / max(1, self.steps)

    @property
    def drafted_per_step(self) -> float:
        """Return the draft tokens verified per step."""
        return self.drafted / max(1, self.steps)

    @property
    def microseconds_per_step(self) -> float:
        """Return the time of the drafter per sequence and step: start, propose, observe and stop."""
        return 1e6 * self.seconds / max(1, self.steps)


def replay(
    drafter: Drafter,
    traces: Iterable[Trace],
    max_nodes: int = 16,
    *,
    batch_size: int = 1,
    told: Iterable[TopTokens] | None = None,
) -> ReplayResult:
    """Run recorded answers through a drafter.

    Args:
        drafter: one that needs no model of its own, nor the target's predictions behind guesses that were wrong.
        traces: (prompt ids, output ids) of each answer; those without output are skipped.
        max_nodes: most nodes of a draft tree.
        batch_size: answers that go on at a time; one that ends makes room for the next.
        told: the target's most likely tokens at every place of each answer, [n, k] (`paceline record --top`).
    Raises:
        ConfigError: max_nodes or batch_size out of range, traces that are no pairs of token ids, an empty prompt, or a drafter
            that learns from the target's most likely tokens where they were not recorded, or from its predictions, which never
            are.
    """
    require_drafter("replay", drafter)
    if drafter.needs_predictions:
        raise ConfigError(
            f"replay: got drafter {drafter.name!r}, which learns from what the target says behind every guess; expected one that"
            " learns from text alone, as a record of answers holds nothing else. Measure it with `paceline bench`."
        )
    require_count("replay", "max_nodes", max_nodes, 0)
    require_count("replay", "batch_size", batch_size, 1)
    traces = _checked(traces)
    run = _Run(drafter, max_nodes)
    waiting = iter([_Answer(*trace, top) for trace, top in _with_told(drafter, traces, told) if len(trace[1])])
    going: list[tuple[Sequence, _Answer]] = []
    try:
        while True:
            while len(going) < batch_size and (answer := next(waiting, None)) is not None:
                going.append((run.start(answer), answer))
            if not going:
                return ReplayResult(max_nodes, batch_size, run.tokens, run.steps, run.drafted, run.accepted, run.seconds)
            run.step(going)
            for seq, _ in going:
                if not seq.remaining:
                    run.stop(seq)
            going = [(seq, answer) for seq, answer in going if seq.remaining]
    finally:
        for seq, _ in going:
            drafter.stop(seq)


def _checked(traces: Iterable[Trace]) -> list[Trace]:
    """Return the traces, each a pair of what token ids can be."""
    try:
        pairs = [(np.asarray(prompt), np.asarray(output)) for prompt, output in traces]
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"replay: got traces that are no pairs ({error}); expected (prompt ids, output ids) of each."
        ) from error
    for place, pair in enumerate(pairs):
        for ids in pair:
            if ids.size and (ids.ndim != 1 or ids.dtype.kind not in "iu" or ids.min() < 0):
                raise ConfigError(f"replay: trace {place}: got {str(ids)[:60]!r}; expected token ids. Use the tokenizer first.")
    return [(prompt.tolist(), output.tolist()) for prompt, output in pairs]


class _Answer(NamedTuple):
    """What a sequence is going to say, and the target's most likely tokens at every place of it."""

    prompt: ListLike[int]
    output: ListLike[int]
    told: TopTokens | None


def _with_told(
    drafter: Drafter, traces: Iterable[Trace], told: Iterable[TopTokens] | None
) -> Iterable[tuple[Trace, TopTokens | None]]:
    if not drafter.top_k:
        return ((trace, None) for trace in traces)
    told = None if told is None else list(told)
    kept = 0 if not told else told[0].token_ids.shape[1]
    if told is None or kept < drafter.top_k:
        raise ConfigError(
            f"replay: drafter {drafter.name!r} learns from the target's {drafter.top_k} most likely tokens after every node: got"
            f" answers with {kept} of them; expected a file of `paceline record --top {drafter.top_k}`. Record one, or choose"
            " another drafter."
        )
    return zip(traces, told, strict=True)


class _Run:
    """A drafter at work, and what has been counted so far."""

    def __init__(self, drafter: Drafter, max_nodes: int) -> None:
        self._drafter, self._max_nodes = drafter, max_nodes
        self.tokens = self.steps = self.drafted = self.accepted = 0
        self.seconds = 0.0

    def start(self, answer: _Answer) -> Sequence:
        """Start a sequence."""
        if not len(answer.prompt):
            raise ConfigError("replay: got an empty prompt; expected at least one token. Put the first one of the answer there.")
        seq = Sequence(list(answer.prompt), SamplingParams(max_new_tokens=len(answer.output), ignore_eos=True))
        begin = time.perf_counter()
        self._drafter.start(seq)
        self.seconds += time.perf_counter() - begin
        return seq

    def stop(self, seq: Sequence) -> None:
        """Stop a sequence that has said everything."""
        begin = time.perf_counter()
        self._drafter.stop(seq)
        self.seconds += time.perf_counter() - begin

    def step(self, going: list[tuple[Sequence, _Answer]]) -> None:
        """Run one step of all sequences."""
        seqs = [seq for seq, _ in going]
        begin = time.perf_counter()
        trees = self._drafter.propose(seqs, [self._max_nodes] * len(seqs))
        self.seconds += time.perf_counter() - begin
        outcomes = [said(seq, tree, answer.output) for (seq, answer), tree in zip(going, trees, strict=True)]
        if self._drafter.top_k:
            outcomes = [_with_top(outcome, answer.told) for outcome, (_, answer) in zip(outcomes, going, strict=True)]
        for outcome in outcomes:
            outcome.seq.append(outcome.new_token_ids)
            self.tokens += len(outcome.new_token_ids)
            self.accepted += len(outcome.accepted)
            self.drafted += len(outcome.tree)
        self.steps += len(outcomes)
        begin = time.perf_counter()
        self._drafter.observe(outcomes)
        self.seconds += time.perf_counter() - begin


def said(seq: Sequence, tree: DraftTree, output: ListLike[int]) -> Outcome:
    """Return what the scripted target says about a tree; after a wrong guess, the recorded token of that place."""
    rest = output[len(seq) - seq.prompt_length :]
    edges, node = tree.edges(), -1
    path: list[int] = []
    while len(path) < len(rest) and (node := edges.get((node, rest[len(path)]), -2)) >= 0:
        path.append(node)
    depths = [0] * (len(tree) + 1)
    for index, parent in enumerate(tree.parents):
        depths[index + 1] = depths[parent + 1] + 1
    argmax = [rest[min(depth, len(rest) - 1)] for depth in depths]
    return Outcome(seq, tree, path, list(rest[: len(path) + 1]), argmax)


def _with_top(outcome: Outcome, told: TopTokens | None) -> Outcome:
    """Add what was recorded of the target's most likely tokens: after the root and the accepted nodes; of the others, zeros."""
    assert told is not None, "a drafter with top_k gets them"
    first = len(outcome.seq) - outcome.seq.prompt_length
    rows = [0, *(1 + node for node in outcome.accepted)][: len(outcome.new_token_ids)]
    shape = 1 + len(outcome.tree), told.token_ids.shape[1]
    token_ids, probs = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.float32)
    token_ids[rows], probs[rows] = (some[first : first + len(rows)] for some in (told.token_ids, told.probs))
    return replace(outcome, target_top=TopTokens(token_ids, probs))
