"""Define the result of comparing decoding with and without drafts."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from paceline.bench.environment import Environment
from paceline.drafters import PLAIN
from paceline.invariance.invariance import Invariance
from paceline.invariance.row_classes import bits
from paceline.util.config import parse_spec


def sets_budget(spec: str) -> bool:
    """Return whether a drafter spec turns the draft budget on or off."""
    return "budget" in parse_spec(spec)[1]


@dataclass(frozen=True, slots=True)
class Logit:
    """The value of a logit, and its exact bits as a hexadecimal number."""

    value: float
    bits: str

    @staticmethod
    def of(number: Tensor) -> Logit:
        """Return the value and the bits of a tensor with a single logit."""
        width = number.element_size()
        spelled = int(bits(number.reshape(1))[0]) & ((1 << 8 * width) - 1)
        return Logit(float(number), f"0x{spelled:0{2 * width}x}")


@dataclass(frozen=True, slots=True)
class Difference:
    """The first difference between answers with and without drafts.

    Attributes:
        prompt: Id of the prompt.
        position: Index of the first differing token in the answer.
        tokens: The tokens at `position`: first the token without drafts, then the token with
            drafts. None stands for an answer that has already ended.
        texts: Both tokens as text.
        plain: Logits of both tokens in decoding without drafts.
        drafted: Logits of both tokens in decoding with drafts.
    """

    prompt: str
    position: int
    tokens: tuple[int | None, int | None]
    texts: tuple[str, str]
    plain: tuple[Logit, ...]
    drafted: tuple[Logit, ...]


@dataclass(frozen=True, slots=True)
class DrafterVerdict:
    """The result for one drafter in batches of one size.

    Attributes:
        drafter: Spec of the drafter.
        batch: Maximum number of prompts answered together.
        prefill_chunk: Maximum number of prompt tokens per forward pass.
        answers: Number of answers compared; 0 if the drafter samples its tokens. Sampled drafts
            guarantee only the same distribution of answers.
        differing: Number of answers that differ from plain decoding.
        accepted: Number of accepted draft tokens. If `accepted` is 0, the comparison proves
            nothing.
        tokens: Number of new tokens in all answers.
        tokens_per_forward: sum(new tokens - 1) / sum(forward passes after prefill), as in
            `MethodFigures`.
        first: The first difference; None if all answers are equal.
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

    @property
    def budget_off(self) -> bool:
        """Return whether the comparison turned the draft budget off."""
        return not (sets_budget(self.drafter) or parse_spec(self.drafter)[0] == PLAIN)


@dataclass(frozen=True, slots=True)
class VerifyResult:
    """The results for all drafters and batches of a run.

    Attributes:
        model, dtype: Name and data type of the target.
        prompts: Number of prompts.
        environment: Description of the machine.
        invariance: Batch invariance of the engine.
        verdicts: Results of completed comparisons.
        cut_prompts: Number of prompts that were shortened because they did not fit into the
            context.
        runs: Number of comparisons in a complete run; an interrupted run has fewer verdicts.
        weights: Format of the target's weights; "" for the weights of the checkpoint.
    """

    model: str
    dtype: str
    prompts: int
    environment: Environment
    invariance: Invariance
    verdicts: tuple[DrafterVerdict, ...]
    cut_prompts: int
    runs: int
    weights: str

    @property
    def complete(self) -> bool:
        """Return whether the run was completed without interruption."""
        return len(self.verdicts) == self.runs

    @property
    def differing(self) -> int:
        """Return the number of differing answers over all drafters and batches."""
        return sum(verdict.differing for verdict in self.verdicts)

    @property
    def answers(self) -> int:
        """Return the number of compared answers over all drafters and batches."""
        return sum(verdict.answers for verdict in self.verdicts)
