"""Run a drafter on recorded answers, without a model.

A scripted target replaces the model. In each step, the drafter proposes a tree, and the scripted
target accepts the longest path that matches the recorded answer. The next recorded token is the
bonus token. The drafter then observes the outcome. There is no prefill step: in the first step, the
drafter drafts from the prompt alone.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from paceline.core.drafter import Drafter, Outcome, TopTokens, require_drafter
from paceline.core.request import Request
from paceline.core.sampling_params import SamplingParams
from paceline.core.tree import DraftTree
from paceline.errors import ConfigError
from paceline.util.config import require_count

Trace = tuple[Sequence[int], Sequence[int]]


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """Counts from one replay.

    A step stands for one forward pass of the target for one request.

    Attributes:
        max_nodes: Maximum number of nodes in a draft tree.
        batch_size: Number of answers replayed at the same time.
        tokens: Number of recorded tokens, which are accepted draft tokens and bonus tokens.
        steps: Number of steps, summed over all requests.
        drafted: Number of draft tokens that the drafter proposed.
        accepted: Number of draft tokens that the target accepted.
        seconds: Time spent in the drafter, in seconds.
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
        """Return the number of tokens per step, including the bonus token.

        Plain decoding produces 1 token per step.
        """
        return self.tokens / max(1, self.steps)

    @property
    def accepted_per_step(self) -> float:
        """Return the number of accepted draft tokens per step."""
        return self.accepted / max(1, self.steps)

    @property
    def drafted_per_step(self) -> float:
        """Return the number of proposed draft tokens per step."""
        return self.drafted / max(1, self.steps)

    @property
    def microseconds_per_step(self) -> float:
        """Return the drafter's time per step of one request, in microseconds."""
        return 1e6 * self.seconds / max(1, self.steps)


def replay(
    drafter: Drafter,
    traces: Iterable[Trace],
    max_nodes: int = 16,
    *,
    batch_size: int = 1,
    top_tokens: Iterable[TopTokens] | None = None,
) -> ReplayResult:
    """Run a drafter on recorded answers, and count the accepted draft tokens.

    Args:
        drafter: Drafter that needs neither a model nor the target's predictions after rejected
            draft tokens.
        traces: Pair of prompt ids and output ids for each answer. The replay skips answers without
            output.
        max_nodes: Maximum number of nodes in a draft tree.
        batch_size: Number of answers replayed at the same time. When one ends, the next one starts.
        top_tokens: For each answer, the target's top tokens at every position, [n, k], which
            `paceline record --top` records. Only drafters that learn from top tokens need them.
    Raises:
        ConfigError: `max_nodes` or `batch_size` is out of range, a trace is not a pair of token-id
            lists, or a prompt is empty. Also raised if the drafter learns from top tokens that
            were not recorded, or from the target's predictions, which are never recorded.
    """
    _check_drafter(drafter)
    require_count("replay", "max_nodes", max_nodes, 0)
    require_count("replay", "batch_size", batch_size, 1)
    traces = _checked(traces)
    run = _ReplayRun(drafter, max_nodes)
    waiting = iter(
        _TargetAnswer(*trace, top)
        for trace, top in _with_top_tokens(drafter, traces, top_tokens)
        if len(trace[1])
    )
    running: list[tuple[Request, _TargetAnswer]] = []
    try:
        while True:
            while len(running) < batch_size and (answer := next(waiting, None)) is not None:
                running.append((run.start(answer), answer))
            if not running:
                counts = run.tokens, run.steps, run.drafted, run.accepted
                return ReplayResult(max_nodes, batch_size, *counts, run.seconds)
            run.step(running)
            for request, _ in running:
                if not request.remaining:
                    run.stop(request)
            running = [(request, answer) for request, answer in running if request.remaining]
    finally:
        for request, _ in running:
            drafter.stop(request)


def _check_drafter(drafter: Drafter) -> None:
    require_drafter("replay", drafter)
    if drafter.needs_predictions:
        raise ConfigError(
            f"replay: drafter {drafter.name!r} learns from the target's predictions after every"
            " draft token, which recorded answers do not contain. Measure the drafter with"
            " `paceline bench`."
        )


def _checked(traces: Iterable[Trace]) -> list[Trace]:
    """Check that each trace is a pair of token-id sequences; return them as lists."""
    try:
        pairs = [(np.asarray(prompt), np.asarray(output)) for prompt, output in traces]
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"replay: the traces are not pairs ({error}). Pass (prompt ids, output ids) of each"
            " answer."
        ) from error
    for number, pair in enumerate(pairs):
        for ids in pair:
            if ids.size and (ids.ndim != 1 or ids.dtype.kind not in "iu" or ids.min() < 0):
                raise ConfigError(
                    f"replay: trace {number}: got {str(ids)[:60]!r}; expected token ids. Use the"
                    " tokenizer first."
                )
    return [(prompt.tolist(), output.tolist()) for prompt, output in pairs]


class _TargetAnswer(NamedTuple):
    """A recorded answer for the scripted target to replay.

    Attributes:
        prompt: Token ids of the prompt.
        output: Token ids of the answer.
        top_tokens: The target's top tokens at each position of the answer. None if the drafter
            does not need them.
    """

    prompt: Sequence[int]
    output: Sequence[int]
    top_tokens: TopTokens | None


def _with_top_tokens(
    drafter: Drafter, traces: Iterable[Trace], top_tokens: Iterable[TopTokens] | None
) -> Iterable[tuple[Trace, TopTokens | None]]:
    if not drafter.top_k:
        return ((trace, None) for trace in traces)
    top_tokens = None if top_tokens is None else list(top_tokens)
    recorded = 0 if not top_tokens else top_tokens[0].token_ids.shape[1]
    if top_tokens is None or recorded < drafter.top_k:
        raise ConfigError(
            f"replay: drafter {drafter.name!r} learns from the target's {drafter.top_k} top tokens"
            f" after every node, but {recorded} of them were recorded. Record them with `paceline"
            f" record --top {drafter.top_k}`, or choose another drafter."
        )
    return zip(traces, top_tokens, strict=True)


class _ReplayRun:
    """Runs the steps of a replay, and counts tokens and seconds.

    Args:
        drafter: Drafter to measure.
        max_nodes: Maximum number of nodes in a draft tree.
    """

    def __init__(self, drafter: Drafter, max_nodes: int) -> None:
        self._drafter, self._max_nodes = drafter, max_nodes
        self.tokens = self.steps = self.drafted = self.accepted = 0
        self.seconds = 0.0

    def start(self, answer: _TargetAnswer) -> Request:
        """Create a request for a recorded answer, and start the drafter on it."""
        if not len(answer.prompt):
            raise ConfigError(
                "replay: got an empty prompt; expected at least one token. Put the first token of"
                " the answer there."
            )
        request = Request(
            list(answer.prompt), SamplingParams(max_new_tokens=len(answer.output), ignore_eos=True)
        )
        begin = time.perf_counter()
        self._drafter.start(request)
        self.seconds += time.perf_counter() - begin
        return request

    def stop(self, request: Request) -> None:
        """Tell the drafter that a request's answer has been replayed completely."""
        begin = time.perf_counter()
        self._drafter.stop(request)
        self.seconds += time.perf_counter() - begin

    def step(self, running: list[tuple[Request, _TargetAnswer]]) -> None:
        """Run one step for all running requests: propose, verify, append and observe."""
        requests = [request for request, _ in running]
        begin = time.perf_counter()
        trees = self._drafter.propose(requests, [self._max_nodes] * len(requests))
        self.seconds += time.perf_counter() - begin
        outcomes = [
            recorded_outcome(request, tree, answer.output)
            for (request, answer), tree in zip(running, trees, strict=True)
        ]
        if self._drafter.top_k:
            outcomes = [
                _with_top(outcome, answer.top_tokens)
                for outcome, (_, answer) in zip(outcomes, running, strict=True)
            ]
        for outcome in outcomes:
            outcome.request.append(outcome.new_token_ids)
            self.tokens += len(outcome.new_token_ids)
            self.accepted += len(outcome.accepted)
            self.drafted += len(outcome.tree)
        self.steps += len(outcomes)
        begin = time.perf_counter()
        self._drafter.observe(outcomes)
        self.seconds += time.perf_counter() - begin


def recorded_outcome(request: Request, tree: DraftTree, output: Sequence[int]) -> Outcome:
    """Verify a draft tree against a recorded answer.

    At a node after a wrong draft token, the scripted target predicts the token that was recorded
    for the position after the node.

    Args:
        request: Request that replays the answer.
        tree: Draft tree of the request.
        output: Token ids of the recorded answer.
    """
    rest = output[len(request) - request.prompt_length :]
    edges, node = tree.edges(), -1
    path: list[int] = []
    while len(path) < len(rest) and (node := edges.get((node, rest[len(path)]), -2)) >= 0:
        path.append(node)
    depths = [0] * (len(tree) + 1)
    for index, parent in enumerate(tree.parents):
        depths[index + 1] = depths[parent + 1] + 1
    argmax = [rest[min(depth, len(rest) - 1)] for depth in depths]
    return Outcome(request, tree, path, list(rest[: len(path) + 1]), argmax)


def _with_top(outcome: Outcome, top_tokens: TopTokens | None) -> Outcome:
    """Add the recorded top tokens of the root and the accepted nodes to an outcome.

    The top tokens of all other nodes are zeros.
    """
    assert top_tokens is not None, "a drafter with top_k receives the top tokens"
    first = len(outcome.request) - outcome.request.prompt_length
    rows = [0, *(1 + node for node in outcome.accepted)][: len(outcome.new_token_ids)]
    shape = 1 + len(outcome.tree), top_tokens.token_ids.shape[1]
    token_ids, probs = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.float32)
    span = slice(first, first + len(rows))
    token_ids[rows], probs[rows] = top_tokens.token_ids[span], top_tokens.probs[span]
    return replace(outcome, target_top=TopTokens(token_ids, probs))
