"""Compare drafted with plain decoding, down to the bits of the first difference."""

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
from paceline.core.node_logits import NodeLogits
from paceline.core.request import Request, SamplingParams
from paceline.core.settings import PREFILL_CHUNK
from paceline.core.tree import DraftTree
from paceline.drafters import create
from paceline.engine.engine import Engine
from paceline.invariance.invariance import Invariance
from paceline.invariance.row_classes import bits
from paceline.model.cached_lm import CachedLM
from paceline.model.loading import draft_lm, eos_token_ids
from paceline.report.progress import progress_bar
from paceline.util.config import parse_spec
from paceline.verification.verify import verify as verify_batch


@dataclass(frozen=True, slots=True)
class Logit:
    """A logit and its bits in hexadecimal."""

    value: float
    bits: str

    @staticmethod
    def of(number: Tensor) -> Logit:
        """Return the logit of a tensor with one number."""
        width = number.element_size()
        spelled = int(bits(number.reshape(1))[0]) & ((1 << 8 * width) - 1)
        return Logit(float(number), f"0x{spelled:0{2 * width}x}")


@dataclass(frozen=True, slots=True)
class Difference:
    """The first difference between an answer and plain decoding.

    Attributes:
        prompt: Id of the prompt.
        position: Index of the first differing token in the answer.
        tokens: The token of plain decoding and of drafted decoding; None after the end of an
            answer.
        texts: The same tokens as texts.
        plain, drafted: Logits of these tokens in plain decoding and in drafted decoding.
    """

    prompt: str
    position: int
    tokens: tuple[int | None, int | None]
    texts: tuple[str, str]
    plain: tuple[Logit, ...]
    drafted: tuple[Logit, ...]


@dataclass(frozen=True, slots=True)
class DrafterVerdict:
    """The comparison of one drafter in batches of one size.

    Attributes:
        drafter: Spec of the drafter.
        batch: Maximum number of prompts answered together.
        prefill_chunk: Maximum prompt tokens of one forward.
        answers: Answers compared. 0 if the drafter draws its tokens, as then only the distribution
            is the same.
        differing: Answers that differ from plain decoding.
        accepted: Draft tokens that were accepted; with none the comparison means nothing.
        tokens: New tokens of all answers.
        tokens_per_forward: Mean over the answers.
        first: The first difference, if any.
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
    """All drafters and batches of a run.

    Attributes:
        model, dtype: The target.
        prompts: Number of prompts.
        environment: The machine.
        invariance: Batch invariance of the engine.
        verdicts: Comparisons that were finished.
        cut_prompts: Prompts that were too long and were cut.
        runs: Comparisons of a complete run; an interrupted run has fewer verdicts.
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
        """Return whether the run was not interrupted."""
        return len(self.verdicts) == self.runs

    @property
    def differing(self) -> int:
        """Return the number of differing answers of all drafters and batches."""
        return sum(verdict.differing for verdict in self.verdicts)

    @property
    def answers(self) -> int:
        """Return the number of compared answers of all drafters and batches."""
        return sum(verdict.answers for verdict in self.verdicts)


class _DivergenceProbe:
    """Verifies like the engine, and records the logits where an answer diverges."""

    def __init__(self) -> None:
        # By request id: the tokens of plain decoding; the position and the logits of a divergence.
        self.expected: dict[int, list[int]] = {}
        self.left: dict[int, tuple[int, Tensor]] = {}
        self.drawn = False  # whether a tree had the distributions of its nodes

    def verify(
        self, requests: Sequence[Request], trees: Sequence[DraftTree], logits: NodeLogits
    ) -> list[Outcome]:
        """Verify the trees of a step (the `Verifier` of an engine)."""
        outcomes = verify_batch(requests, trees, logits)
        for row, (request, tree, outcome) in enumerate(zip(requests, trees, outcomes, strict=True)):
            self.drawn |= tree.probs is not None
            expected = self.expected.get(request.id)
            if expected is None or request.id in self.left:
                continue
            begin = len(request.output_ids)
            for offset, token in enumerate(outcome.new_token_ids):
                if expected[begin + offset : begin + offset + 1] != [token]:
                    column = 1 + outcome.accepted[offset - 1] if offset else 0
                    self.left[request.id] = begin + offset, logits[row][column].clone()
                    break
        return outcomes


class _Side:
    """An engine for batches of one size, with the sampling parameters of the run."""

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
        # The engine's chunk size may change while requests decode.
        self.batch, self.prefill_chunk = batch, self.engine.model.prefill_chunk

    @property
    def drawn(self) -> bool:
        """Return whether the latest drafter drew its tokens from distributions."""
        return self._watch.drawn

    def use(self, drafter: Drafter) -> None:
        """Change the drafter for the following answers."""
        self.engine.change_drafter(drafter)
        self._watch.drawn = False

    def answer(
        self,
        prompts: Sequence[list[int]],
        first: int,
        expected: Sequence[list[int]] | None = None,
        done: Callable[[int], object] = lambda count: None,
    ) -> list[tuple[Request, tuple[int, Tensor] | None, float]]:
        """Answer prompts, as many together as the batch allows.

        Args:
            prompts: Token ids of the prompts.
            first: Number of the first prompt; prompt n has seed + n.
            expected: Answers of plain decoding to compare with.
            done: Called after every step with the number of answers that ended in it.
        Returns:
            For each prompt the request, its position and logits where it diverged from `expected`
            (None if it did not), and its tokens per forward.
        """
        requests = [
            Request(
                ids,
                self._params(first + index),
                eos_token_ids=self._eos,
                max_length=self.engine.model.context_length,
            )
            for index, ids in enumerate(prompts)
        ]
        self._watch.expected = (
            {}
            if expected is None
            else {request.id: tokens for request, tokens in zip(requests, expected, strict=True)}
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
        """Describe the first difference; run plain decoding again for its logits."""
        position, row = left
        ((_, again, _),) = self.answer([ids], number, [plain[:position]])
        tokens = tuple(
            answer[position] if position < len(answer) else None for answer in (plain, drafted)
        )
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
    """Compare plain decoding with every drafter in batches, token by token.

    The plain answers are made one prompt at a time. Ctrl-C ends the run with the verdicts so far.

    Args:
        config: Models, drafters, prompts, sampling and `max_nodes` of the run.
        finished: Called with each verdict.
        batches: Maximum prompts answered together; every drafter runs with each.
        prefill_chunks: Maximum prompt tokens of a forward; every drafter runs with each.
        progress: Show a progress bar on standard error, if that is a terminal.
    Raises:
        ConfigError: Models, prompts or drafters cannot be used, or the required batch invariance is
            not available.
        KeyboardInterrupt: Ctrl-C came before the first verdict.
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
        results = alone.answer([ids for _, ids in prompts], 0, done=partial(bar.advance, task))
        plain = [request.output_ids for request, _, _ in results]
        verdicts: list[DrafterVerdict] = []
        try:
            for chunk, batch in itertools.product(prefill_chunks, batches):
                side = _Side(config, models, batch, chunk)
                for spec in config.drafters:
                    bar.update(
                        task, description=f"{escape(spec)}, batch {batch}, chunks of {chunk}"
                    )
                    side.use(_build(spec, draft))
                    verdicts.append(
                        _verdict(side, alone, spec, prompts, plain, partial(bar.advance, task))
                    )
                    bar.stop()  # the callback may print
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


def _build(spec: str, draft: CachedLM | None) -> Drafter:
    """Build a drafter whose drafts are all verified, unless its spec has a budget."""
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
    results = side.answer([ids for _, ids in prompts], 0, plain, done)
    drawn = side.drawn
    left = (
        []
        if drawn
        else [
            number
            for number, (request, _, _) in enumerate(results)
            if request.output_ids != plain[number]
        ]
    )
    first = None
    for number in left[:1]:
        request, divergence, _ = results[number]
        assert divergence is not None, "an answer of the same tokens that is shorter"
        first = alone.difference(
            *prompts[number][:1],
            number,
            prompts[number][1],
            plain[number],
            request.output_ids,
            divergence,
        )
    return DrafterVerdict(
        spec,
        side.batch,
        side.prefill_chunk,
        0 if drawn else len(results),
        len(left),
        sum(request.counters.accepted_tokens for request, _, _ in results),
        sum(len(request.output_ids) for request, _, _ in results),
        sum(speed for _, _, speed in results) / len(results),
        first,
    )
