"""Answer prompts with one engine, and record where answers diverge."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from torch import Tensor

from paceline.bench.models import Models
from paceline.bench.settings import BenchConfig
from paceline.bench.verify_result import Difference, Logit
from paceline.core.drafter import Drafter, Outcome
from paceline.core.node_logits import NodeLogits
from paceline.core.request import Request
from paceline.core.sampling_params import SamplingParams
from paceline.core.settings import PREFILL_CHUNK
from paceline.core.tree import DraftTree
from paceline.drafters import create
from paceline.engine.engine import Engine
from paceline.model.loading import eos_token_ids
from paceline.verification.verify import verify as verify_batch


class DivergenceProbe:
    """Verifies trees as the engine does, and records logits where answers diverge."""

    def __init__(self) -> None:
        # By request id: the tokens of plain decoding; the position and the logits of a divergence.
        self.expected: dict[int, list[int]] = {}
        self.divergences: dict[int, tuple[int, Tensor]] = {}
        self.drawn = False  # whether a tree had the distributions of its nodes

    def verify(
        self, requests: Sequence[Request], trees: Sequence[DraftTree], logits: NodeLogits
    ) -> list[Outcome]:
        """Verify a step's trees as the engine does, and record where answers diverge."""
        outcomes = verify_batch(requests, trees, logits)
        for row, (request, tree, outcome) in enumerate(zip(requests, trees, outcomes, strict=True)):
            self.drawn |= tree.probs is not None
            expected = self.expected.get(request.id)
            if expected is None or request.id in self.divergences:
                continue
            begin = len(request.output_ids)
            for offset, token in enumerate(outcome.new_token_ids):
                if expected[begin + offset : begin + offset + 1] != [token]:
                    column = 1 + outcome.accepted[offset - 1] if offset else 0
                    self.divergences[request.id] = begin + offset, logits[row][column].clone()
                    break
        return outcomes


class VerifyEngine:
    """An engine for batches of one size, with the run's sampling parameters."""

    def __init__(
        self, config: BenchConfig, models: Models, batch: int = 1, chunk: int = PREFILL_CHUNK
    ) -> None:
        self._probe = DivergenceProbe()
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
            verify=self._probe.verify,
        )
        # The engine's chunk size may change while requests decode.
        self.batch, self.prefill_chunk = batch, self.engine.model.prefill_chunk

    @property
    def drawn(self) -> bool:
        """Return whether the current drafter sampled its tokens from distributions."""
        return self._probe.drawn

    def use(self, drafter: Drafter) -> None:
        """Use a different drafter for the following answers."""
        self.engine.change_drafter(drafter)
        self._probe.drawn = False

    def answer(
        self,
        prompts: Sequence[list[int]],
        first: int,
        expected: Sequence[list[int]] | None = None,
        done: Callable[[int], object] = lambda count: None,
    ) -> list[tuple[Request, tuple[int, Tensor] | None]]:
        """Answer prompts in batches of the maximum size.

        Args:
            prompts: Token ids of the prompts.
            first: Index of the first prompt; prompt n uses seed + n.
            expected: Answers from plain decoding for comparison.
            done: Function called after every step with the number of answers that ended in the
                step.
        Returns:
            For each prompt: the request, and the first difference from `expected`. The difference
                is a position and the logits there; None if the answers are equal.
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
        self._probe.expected = (
            {}
            if expected is None
            else {request.id: tokens for request, tokens in zip(requests, expected, strict=True)}
        )
        self._probe.divergences = {}
        handles = self.engine.submit(requests)
        try:
            self.engine.finish(handles, done)
        finally:
            self.engine.withdraw(handles)
        return [
            (request, self._probe.divergences.get(request.id))
            for request in (handle.request for handle in handles)
        ]

    def difference(
        self,
        prompt: str,
        number: int,
        ids: list[int],
        plain: list[int],
        drafted: list[int],
        divergence: tuple[int, Tensor],
    ) -> Difference:
        """Describe the first difference between two answers to the same prompt.

        Plain decoding runs again, to provide the logits at the differing position.

        Args:
            prompt: Id of the prompt.
            number: Index of the prompt; prompt n uses seed + n.
            ids: Token ids of the prompt.
            plain: Answer from plain decoding.
            drafted: Answer with drafts.
            divergence: Position at which the answers differ, and the logits at this position with
                drafts.
        """
        position, row = divergence
        ((_, plain_divergence),) = self.answer([ids], number, [plain[:position]])
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
            tuple(Logit.of(plain_divergence[1][token]) for token in both)
            if plain_divergence is not None
            else (),
            tuple(Logit.of(row[token]) for token in both),
        )

    def _params(self, number: int) -> SamplingParams:
        return replace(self._sampling, seed=self._sampling.seed + number)
