"""Test a drafter per request: forward passes are shared, errors are not."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from paceline import LLM, Drafter, DraftTree, Outcome, SamplingParams
from paceline.bench.settings import BenchConfig
from paceline.core.request import Request
from paceline.draft_budget.drafter_stats import DrafterStats
from paceline.drafters import create
from paceline.engine.drafter_pool import DrafterPool, refuse_others
from paceline.engine.engine import Engine
from paceline.engine.settings import MAX_NAMED_DRAFTERS
from paceline.errors import BusyError, ConfigError, DrafterError
from paceline.training.acceptance_head.settings import RecordConfig
from paceline.util.options import flat
from tests.support.shared import COUNT, Pair, without_budget

MIXED = [
    "none",
    "sssd",
    "prompt_lookup",
    "lookahead",
    "draft_model:verification=follow",
    "token_recycling",
    "auto",
]


def params_in_turn(pair: Pair, specs: Sequence[str | None], **options: Any) -> list[SamplingParams]:
    """Return parameters for every prompt, with the specs in turn."""
    return [
        SamplingParams(COUNT, speculation=specs[row % len(specs)], **options)
        for row in range(len(pair.prompts))
    ]


@pytest.fixture
def llm(pair: Pair) -> LLM:
    return LLM(pair.target, "none", pair.draft, max_batch=len(pair.prompts))


@pytest.mark.parametrize("budget", [True, False])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_batch_of_many_drafters_keeps_the_answers(
    pair: Pair, llm: LLM, temperature: float, budget: bool
) -> None:
    plain = llm.generate(pair.prompts, SamplingParams(COUNT, temperature, seed=7))
    if temperature == 0:
        assert [out.token_ids for out in plain] == pair.answers
    params = params_in_turn(
        pair,
        MIXED if budget else [without_budget(spec) for spec in MIXED],
        temperature=temperature,
        seed=7,
    )
    for turn in range(
        2
    ):  # the second turn has warm drafters and pairs prompts and drafters differently
        params = params[turn:] + params[:turn]
        outs = llm.generate(pair.prompts, params)
        assert [out.token_ids for out in outs] == [out.token_ids for out in plain]
        for out, one in zip(outs, params, strict=True):
            name = str(one.speculation).partition(":")[0]
            assert out.stats.drafted_tokens == 0 or name != "none"
            assert out.stats.draft_forwards > 0 or name != "draft_model"
            assert out.stats.draft_forwards == 0 or name in ("draft_model", "auto")
            assert len(out.stats.query_tokens) == out.stats.target_forwards
    assert llm.model.open_sequences == 0
    if not budget:
        assert all(
            out.stats.drafted_tokens > 0
            for out, one in zip(outs, params, strict=True)
            if one.speculation != "none"
        )
    assert llm.drafter.name == "none"


def test_drafters_share_forward_passes(pair: Pair, llm: LLM) -> None:
    """Check for as many steps as the slowest request needs."""
    steps: list[int] = []
    forward = llm.model.forward_nodes

    def count_forwards(requests: Sequence[Request], *args: Any) -> Any:
        steps.append(len({request.params.speculation for request in requests}))
        return forward(requests, *args)

    llm.model.forward_nodes = count_forwards  # type: ignore[method-assign, assignment]
    outs = llm.generate(
        pair.prompts, params_in_turn(pair, [without_budget(spec) for spec in MIXED])
    )
    assert [out.token_ids for out in outs] == pair.answers
    assert len(steps) < 2 * COUNT
    assert max(steps) == len(MIXED)


def test_drafters_are_created_once_per_spec(pair: Pair) -> None:
    llm = LLM(pair.target, "sssd:max_nodes=9,budget=false")
    with_own: list[int] = []
    start = llm.drafter.start
    llm.drafter.start = lambda request: (with_own.append(request.id), start(request))[1]  # type: ignore[method-assign, func-returns-value]
    specs = [
        None,
        "sssd:max_nodes=9,budget=false",
        " sssd: budget=false, max_nodes=9",
        "sssd:max_nodes=9",
    ]
    outs = llm.generate(pair.prompts[:4], [SamplingParams(8, speculation=spec) for spec in specs])
    assert [out.token_ids for out in outs] == [answer[:8] for answer in pair.answers[:4]]
    assert len(with_own) == 3
    roster = llm._engine._drafters
    first = roster.find("sssd:max_nodes=9", set)
    assert first is not roster.own
    assert roster.find("sssd:max_nodes=9", set) is first
    assert first.stats is not None


def test_max_nodes_per_request(pair: Pair) -> None:
    llm = pair.engine("prompt_lookup")
    caps = [0, 1, 3, None]
    params = [SamplingParams(COUNT, max_nodes=caps[row % 4]) for row in range(len(pair.prompts))]
    outs = llm.generate(pair.prompts, params)
    assert [out.token_ids for out in outs] == pair.answers
    for cap in caps:
        mine = [out.stats for out, one in zip(outs, params, strict=True) if one.max_nodes == cap]
        widest = max(
            fed - 1 for stats in mine for fed in stats.query_tokens[stats.prefill_forwards :]
        )
        assert widest > 3 if cap is None else widest == cap
        assert (sum(stats.drafted_tokens for stats in mine) == 0) == (cap == 0)


def test_streams_of_several_drafters(pair: Pair, llm: LLM) -> None:
    streams = [
        llm.stream(prompt, SamplingParams(COUNT, speculation=without_budget(spec)))
        for prompt, spec in zip(pair.prompts, MIXED, strict=False)
    ]
    firsts = [next(stream).token_ids for stream in streams]
    with ThreadPoolExecutor(3) as threads:
        rests = list(
            threads.map(
                lambda stream: [token for chunk in stream for token in chunk.token_ids], streams
            )
        )
    assert [first + rest for first, rest in zip(firsts, rests, strict=True)] == pair.answers[
        : len(MIXED)
    ]
    assert llm.model.open_sequences == 0


class FailsIn(Drafter):
    """Drafter that fails in the given method, at its third or eighth call.

    It is the third call of methods for one request, and the eighth of those for a batch.
    """

    name = "breaks"

    def __init__(self, where: str) -> None:
        self._where, self._calls = where, 0
        self.open: set[int] = set()

    def _call(self, where: str) -> None:
        self._calls += where == self._where
        if where == self._where and self._calls == (3 if where in ("start", "stop") else 8):
            raise RuntimeError(f"broken in {where}")

    def start(self, request: Request) -> None:
        self.open.add(request.id)
        self._call("start")

    def propose(self, requests: Sequence[Request], max_nodes: list[int]) -> list[DraftTree]:
        self._call("propose")
        wrong = self._where == "tree" and any(len(request.output_ids) == 5 for request in requests)
        return [DraftTree([1], [0 if wrong else -1]) for _ in requests]

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        self._call("observe")

    def stop(self, request: Request) -> None:
        self.open.discard(request.id)
        self._call("stop")


@pytest.mark.parametrize("where", ["start", "propose", "tree", "observe", "stop"])
def test_failing_drafter_ends_only_its_own_requests(pair: Pair, where: str) -> None:
    broken = FailsIn(where)
    engine = Engine(
        pair.target, create("none"), make=lambda spec: broken if spec == "breaks" else create(spec)
    )
    specs = ["breaks", None, "sssd:budget=false", "breaks", "prompt_lookup", "breaks"]
    requests = [
        Request(prompt, SamplingParams(COUNT - 5 * row, speculation=spec))
        for row, (prompt, spec) in enumerate(zip(pair.prompts, specs, strict=False))
    ]
    handles = engine.submit(requests)
    while engine.unfinished:
        engine.step()
    failed = [handle for handle in handles if handle.error is not None]
    assert 0 < len(failed) == (1 if where in ("start", "stop") else 3)
    assert {handle.request.params.speculation for handle in failed} == {"breaks"}
    assert all(
        isinstance(handle.error, DrafterError if where == "tree" else RuntimeError)
        for handle in failed
    )
    for handle, answer in zip(handles, pair.answers, strict=False):
        if handle not in failed:
            assert handle.request.output_ids == answer[: handle.request.params.max_new_tokens]
    assert not broken.open
    assert engine.model.open_sequences == 0


def test_top_tokens_reach_only_their_own_drafter(pair: Pair) -> None:
    class TopTokenDrafter(Drafter):
        top_k = 3

        def __init__(self) -> None:
            self.seen: list[Outcome] = []

        def propose(self, requests: Sequence[Request], max_nodes: list[int]) -> list[DraftTree]:
            return [DraftTree([1, 2], [-1, -1]) for _ in requests]

        def observe(self, outcomes: Sequence[Outcome]) -> None:
            self.seen += outcomes

    top_token_drafter = TopTokenDrafter()
    engine = Engine(
        pair.target,
        create("none"),
        make=lambda spec: top_token_drafter if spec == "curious" else create(spec),
    )
    specs = [None, "curious", "sssd:budget=false", "curious"]
    requests = [
        Request(prompt, SamplingParams(9, speculation=spec))
        for prompt, spec in zip(pair.prompts, specs, strict=False)
    ]
    engine.finish(engine.submit(requests))
    assert {outcome.request.id for outcome in top_token_drafter.seen} == {
        requests[1].id,
        requests[3].id,
    }
    for outcome in top_token_drafter.seen:
        assert outcome.target_top is not None
        assert outcome.target_top.token_ids[:, 0].tolist() == outcome.target_argmax


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("nonsense", "prompt 2: speculation: there is no drafter 'nonsense'"),
        ("sssd:max_nodes=x", "prompt 2: speculation: sssd: max_nodes: got 'x'"),
        (
            "sssd:nodes",
            "prompt 2: speculation: drafter 'sssd': got 'nodes' for its options; expected options"
            " as key=value",
        ),
        (
            "sssd:max_nodes=3,x",
            "prompt 2: speculation: got 'x' in 'sssd:max_nodes=3,x'; expected options as key=value",
        ),
        ("draft_model", "prompt 2: speculation: drafter 'draft_model' needs a draft model"),
    ],
)
def test_invalid_spec_is_refused_before_the_call_starts(
    pair: Pair, spec: str, message: str
) -> None:
    llm = LLM(pair.target, "none")
    params = [SamplingParams(4, speculation=one) for one in (None, "sssd", spec)]
    with pytest.raises(ConfigError, match=message):
        llm.generate(pair.prompts[:3], params)
    assert not llm._engine.unfinished
    assert llm.timing.step == 0
    with pytest.raises(ConfigError, match=message.replace("prompt 2", "prompt 0")):
        next(llm.stream(pair.prompts[0], params[2]))


def test_a_drafter_of_another_vocabulary_is_refused(pair: Pair) -> None:
    class SmallVocabulary(Drafter):
        vocab_size = 7

    engine = Engine(pair.target, create("none"), make=lambda spec: SmallVocabulary())
    with pytest.raises(
        ConfigError, match="prompt 0: speculation: drafter 'drafter': got a vocabulary of 7 tokens"
    ):
        engine.submit([Request([1], SamplingParams(speculation="foreign"))])


def test_engine_without_a_factory_refuses_specs(pair: Pair) -> None:
    with pytest.raises(
        ConfigError,
        match="prompt 0: speculation: got 'none'; expected None, because this engine cannot create",
    ):
        Engine(pair.target, create("none")).submit(
            [Request([1], SamplingParams(speculation="none"))]
        )


@pytest.mark.parametrize(
    "options", [{"speculation": ""}, {"speculation": 3}, {"max_nodes": -1}, {"max_nodes": 1.5}]
)
def test_invalid_values_are_refused(options: dict[str, Any]) -> None:
    (name,) = options
    with pytest.raises(
        ConfigError, match=f"{name}: got {next(iter(options.values()))!r}; expected"
    ):
        SamplingParams(**options)


def test_number_of_drafters_is_bounded() -> None:
    made: list[str] = []

    def make(spec: str) -> Drafter:
        made.append(spec)
        return create("none")

    roster = DrafterPool(make, lambda drafter: None, new_stats=DrafterStats)
    roster.use(create("none"), "none")
    found = [roster.find(f"none:x={number}", set) for number in range(MAX_NAMED_DRAFTERS)]
    roster.find("none:x=0", set)
    # Replaces the least recently used drafter that is not in use.
    roster.find("none:x=99", lambda: {found[1]})
    assert roster.find("none:x=0", set) is found[0]
    assert roster.find("none:x=1", set) is found[1]
    assert len(made) == MAX_NAMED_DRAFTERS + 1
    assert roster.find("none:x=2", set) is not found[2]
    with pytest.raises(
        BusyError, match=f"got one more drafter while {MAX_NAMED_DRAFTERS} others are in use"
    ):
        roster.find("none:x=100", lambda: set(roster._named.values()))
    assert roster.find("none", set) is roster.own


def test_drafter_calibration_is_kept_for_later_requests(pair: Pair) -> None:
    llm = LLM(pair.target, "none")
    for _ in range(2):
        llm.generate(pair.prompts, SamplingParams(COUNT, speculation="sssd"))
    stats = llm._engine._drafters.find("sssd", set).stats
    assert stats is not None
    assert stats.acceptance_calibration.trials.sum() > 0
    assert llm.acceptance_calibration is None  # the engine's own drafter has none


def test_lookahead_parallelism_has_one_drafter() -> None:
    roster = DrafterPool(refuse_others, lambda drafter: None, new_stats=None)
    roster.use(create("lookahead:window=4"), "lookahead:window=4")
    assert roster.find("lookahead:window=4", set) is roster.own
    with pytest.raises(
        ConfigError,
        match="got 'sssd' in lookahead parallelism, where the processes share the trees of a",
    ):
        roster.find("sssd", set)


def test_benchmarks_refuse_per_request_options() -> None:
    """Check that a benchmark's own `max_nodes` is still accepted."""
    assert not {"speculation"} & flat(BenchConfig()).keys()
    assert not {"speculation", "max_nodes"} & flat(SamplingParams(speculation="none")).keys()
    assert flat(BenchConfig(max_nodes=3))["max_nodes"] == 3
    for config in (BenchConfig, RecordConfig):
        with pytest.raises(
            ConfigError, match=r"max_nodes: got 3 among the sampling options; expected None there"
        ):
            config(sampling=SamplingParams(max_nodes=3))
        with pytest.raises(ConfigError, match="speculation: got 'none' among the sampling options"):
            config(sampling=SamplingParams(speculation="none"))
