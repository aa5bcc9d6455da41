"""Plain and drafted decoding side by side: how many answers differ, and the first difference
down to the bits of its logits.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from rich.markup import escape
from torch import Tensor

from paceline.bench.environment import Environment, load_average, look_around, peak_memory
from paceline.bench.models import Models, feeding_all, load_models, make_units, torch_threads
from paceline.bench.settings import BenchConfig
from paceline.core.drafter import Drafter, Outcome
from paceline.core.request import Request, SamplingParams
from paceline.core.tree import DraftTree
from paceline.drafters import create
from paceline.engine.engine import Engine
from paceline.invariance.invariance import Invariance
from paceline.invariance.row_classes import bits
from paceline.model.cached_lm import PREFILL_CHUNK, CachedLM
from paceline.model.loading import draft_lm, eos_token_ids
from paceline.model.node_logits import NodeLogits
from paceline.report.progress import progress_bar
from paceline.util.config import parse_spec
from paceline.verification.verify import verify as verify_batch


@dataclass(frozen=True, slots=True)
class Logit:
    """One logit and its bits, in hexadecimal."""

    value: float
    bits: str

    @staticmethod
    def of(number: Tensor) -> Logit:
        """Read off a tensor of one number."""
        width = number.element_size()
        spelled = int(bits(number.reshape(1))[0]) & ((1 << 8 * width) - 1)
        return Logit(float(number), f"0x{spelled:0{2 * width}x}")


@dataclass(frozen=True, slots=True)
class Difference:
    """Where an answer leaves that of plain decoding.

    Attributes:
        prompt: its id; position: the first token of the answer that differs, from 0.
        tokens: the plain token there, then the drafted one; None where an answer has ended. texts:
            the same in words.
        plain, drafted: the logits of those two tokens in plain decoding and in drafted decoding.
    """

    prompt: str
    position: int
    tokens: tuple[int | None, int | None]
    texts: tuple[str, str]
    plain: tuple[Logit, ...]
    drafted: tuple[Logit, ...]


@dataclass(frozen=True, slots=True)
class DrafterVerdict:
    """One drafter in batches of one size.

    Attributes:
        batch: most prompts answered together; prefill_chunk: most tokens of a prompt in one
            forward.
        answers: how many were compared; 0 where the drafter draws tokens of its own, so that only
            the distribution is the same.
        differing: how many of them are not those of plain decoding.
        accepted: draft tokens that were kept; without any, nothing has been tried.
        tokens: new tokens of all answers; tokens_per_forward: mean over the answers.
    """

    drafter: str
    batch: int
    prefill_chunk: int
    answers: int
    differing: int
    accepted: int
    tokens: int
    tokens_per_forward: float
    first: Difference | None


@dataclass(frozen=True, slots=True)
class VerifyResult:
    """All drafters and batches of a run, where and whether batch-invariantly it was made, and how
    many prompts were cut.

    Attributes:
        runs: verdicts that were to be; an interrupted run has fewer.
    """

    model: str
    dtype: str
    prompts: int
    environment: Environment
    invariance: Invariance
    verdicts: tuple[DrafterVerdict, ...]
    cut_prompts: int
    runs: int

    @property
    def complete(self) -> bool:
        """Whether it was not interrupted."""
        return len(self.verdicts) == self.runs

    @property
    def differing(self) -> int:
        """Answers that differ, of all drafters and batches."""
        return sum(verdict.differing for verdict in self.verdicts)

    @property
    def answers(self) -> int:
        """Answers compared, of all drafters and batches."""
        return sum(verdict.answers for verdict in self.verdicts)


class _DivergenceProbe:
    """The engine's rule of verification, which notes the logits where an answer leaves what was
    expected.
    """

    def __init__(self) -> None:
        self.expected: dict[int, list[int]] = {}  # by sequence
        self.left: dict[int, tuple[int, Tensor]] = {}  # by sequence: position and logits [vocab]
        self.drawn = False  # a tree carried the distributions its nodes were drawn from

    def verify(
        self, requests: Sequence[Request], trees: Sequence[DraftTree], logits: NodeLogits
    ) -> list[Outcome]:
        """Verify; the `Verifier` of an engine."""
        outcomes = verify_batch(requests, trees, logits)
        for row, (request, tree, outcome) in enumerate(zip(requests, trees, outcomes, strict=True)):
            self.drawn |= tree.probs is not None
            expected = self.expected.get(request.id)
            if expected is None or request.id in self.left:
                continue
            begin = len(request.output_ids)
            for place, token in enumerate(outcome.new_token_ids):
                if expected[begin + place : begin + place + 1] != [token]:
                    column = 1 + outcome.accepted[place - 1] if place else 0
                    self.left[request.id] = begin + place, logits[row][column].clone()
                    break
        return outcomes


class _Side:
    """An engine for batches of one size, and what it takes to answer prompts with it."""

    def __init__(
        self, config: BenchConfig, models: Models, batch: int = 1, chunk: int = PREFILL_CHUNK
    ) -> None:
        self._watch = _DivergenceProbe()
        self._sampling = config.sampling
        self._models = models
        self._eos = eos_token_ids(models.target, models.tokenizer)
        self.engine = Engine(
            models.target,
            create("none"),
            tokenizer=models.tokenizer,
            max_batch=batch,
            max_nodes=config.max_nodes,
            prefill_chunk=chunk,
            batch_invariant=config.models.invariance,
            verify=self._watch.verify,
        )
        self.batch, self.prefill_chunk = (
            batch,
            self.engine.model.prefill_chunk,
        )  # the latter may change while others decode

    @property
    def drawn(self) -> bool:
        """Whether the latest drafter drew tokens of its own."""
        return self._watch.drawn

    def use(self, drafter: Drafter) -> None:
        """Answer with another drafter from now on."""
        self.engine.change_drafter(drafter)
        self._watch.drawn = False

    def answer(
        self,
        prompts: Sequence[list[int]],
        first: int,
        expected: Sequence[list[int]] | None = None,
        done: Callable[[int], object] = lambda count: None,
    ) -> list[tuple[Request, tuple[int, Tensor] | None, float]]:
        """Answer prompts, as many together as there is room for: the sequence, where it left
        `expected`, its tokens per forward.

        Args:
            first: number of the first prompt; number n has seed + n.
            done: called after every step with how many answers have ended in it.
        """
        requests = [
            Request(
                ids,
                self._params(first + place),
                eos_token_ids=self._eos,
                max_length=self.engine.model.context_length,
            )
            for place, ids in enumerate(prompts)
        ]
        self._watch.expected = (
            {}
            if expected is None
            else {request.id: one for request, one in zip(requests, expected, strict=True)}
        )
        self._watch.left = {}
        handles = self.engine.submit(requests)
        try:
            self.engine.finish(handles, done)
        finally:
            self.engine.withdraw(handles)
        return [
            (
                handle.request,
                self._watch.left.get(handle.request.id),
                handle.stats().tokens_per_forward,
            )
            for handle in handles
        ]

    def difference(
        self,
        prompt: str,
        number: int,
        ids: list[int],
        plain: list[int],
        drafted: list[int],
        left: tuple[int, Tensor],
    ) -> Difference:
        """Return what is to be said about the first difference; plain decoding goes there once
        more for its logits.
        """
        position, row = left
        ((_, again, _),) = self.answer([ids], number, [plain[:position]])
        tokens = tuple(one[position] if position < len(one) else None for one in (plain, drafted))
        decode = self._models.tokenizer.decode if self._models.tokenizer is not None else str
        both = [token for token in tokens if token is not None]
        return Difference(
            prompt,
            position,
            (tokens[0], tokens[1]),
            tuple("the end" if token is None else decode([token]) for token in tokens),  # type: ignore[arg-type]
            tuple(Logit.of(again[1][token]) for token in both) if again is not None else (),
            tuple(Logit.of(row[token]) for token in both),
        )

    def _params(self, number: int) -> SamplingParams:
        return replace(self._sampling, seed=self._sampling.seed + number)


def run_verify(
    config: BenchConfig,
    finished: Callable[[DrafterVerdict], None] = lambda verdict: None,
    batches: Sequence[int] = (1,),
    prefill_chunks: Sequence[int] = (PREFILL_CHUNK,),
    progress: bool = False,
) -> VerifyResult:
    """Answer every prompt alone and without drafts, then in batches with every drafter, and compare
    token by token.

    Ctrl-C ends it with the verdicts there are.

    Args:
        config: its models, drafters, prompts, sampling and `max_nodes` count.
        finished: called with each verdict as it comes.
        batches: most prompts answered together; where one is done, the next begins. prefill_chunks:
            most tokens of a prompt in one forward. Every drafter is tried with each of both.
        progress: draw a bar on standard error, if that is a terminal.
    Raises:
        ConfigError: models, prompts or drafters that cannot be used, or batch invariance that was
            asked for and cannot be; KeyboardInterrupt before the first verdict.
    """
    with torch_threads(config.models.threads), progress_bar(shown=progress) as bar:
        models = load_models(config, None, None, None)
        environment = look_around(models.target.device)
        draft = None if models.draft is None else draft_lm(models.draft)
        units = make_units(config, models)
        alone = _Side(config, models)
        prompts = [
            (prompt.id, ids)
            for unit in units
            for prompt, ids in zip(unit.prompts, unit.token_ids, strict=True)
        ]
        runs = len(prefill_chunks) * len(batches) * len(config.drafters)
        task = bar.add_task("alone, without drafts", total=(1 + runs) * len(prompts))
        found = alone.answer([ids for _, ids in prompts], 0, done=partial(bar.advance, task))
        plain = [request.output_ids for request, _, _ in found]
        verdicts: list[DrafterVerdict] = []
        try:
            for chunk, batch in itertools.product(prefill_chunks, batches):
                side = _Side(config, models, batch, chunk)
                for spec in config.drafters:
                    bar.update(
                        task, description=f"{escape(spec)}, batch {batch}, chunks of {chunk}"
                    )
                    side.use(_made(spec, draft))
                    verdicts.append(
                        _verdict(side, alone, spec, prompts, plain, partial(bar.advance, task))
                    )
                    bar.stop()  # a verdict may go to another place than the bar
                    finished(verdicts[-1])
                    bar.start()
        except KeyboardInterrupt:
            if not verdicts:
                raise
        dtype = str(models.target.dtype).removeprefix("torch.")
        cut = sum(unit.cut for unit in units)
        environment = replace(environment, load_end=load_average(), peak_memory=peak_memory())
        return VerifyResult(
            models.target_label,
            dtype,
            len(prompts),
            environment,
            alone.engine.invariance,
            tuple(verdicts),
            cut,
            runs,
        )


def _made(spec: str, draft: CachedLM | None) -> Drafter:
    """Build a drafter whose drafts are all fed unless its spec says otherwise: else nothing is
    tried.
    """
    make = partial(create, spec, draft_model=draft)
    return make() if "budget" in parse_spec(spec)[1] else feeding_all(make)


def _verdict(
    side: _Side,
    alone: _Side,
    spec: str,
    prompts: list[tuple[str, list[int]]],
    plain: list[list[int]],
    done: Callable[[int], object],
) -> DrafterVerdict:
    found = side.answer([ids for _, ids in prompts], 0, plain, done)
    drawn = side.drawn
    left = (
        []
        if drawn
        else [
            number
            for number, (request, _, _) in enumerate(found)
            if request.output_ids != plain[number]
        ]
    )
    first = None
    for number in left[:1]:
        request, where, _ = found[number]
        assert where is not None, "an answer of the same tokens that is shorter"
        first = alone.difference(
            *prompts[number][:1],
            number,
            prompts[number][1],
            plain[number],
            request.output_ids,
            where,
        )
    return DrafterVerdict(
        spec,
        side.batch,
        side.prefill_chunk,
        0 if drawn else len(found),
        len(left),
        sum(request.counters.accepted_tokens for request, _, _ in found),
        sum(len(request.output_ids) for request, _, _ in found),
        sum(speed for _, _, speed in found) / len(found),
        first,
    )
