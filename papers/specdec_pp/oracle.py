"""Implement the SpecDec++ paper's oracle, which ends drafts at a disagreement.

See Huang et al. 2024, section 2.1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from paceline.bench.run import Maker
from paceline.core.sampling_params import SamplingParams
from paceline.drafters.draft_model.drafter import DraftModel, DraftModelOptions
from paceline.drafters.shared.chain import Chain
from paceline.drafters.shared.drawn_tokens import NewTokens
from paceline.drafters.shared.length_rules import LengthRule
from paceline.drafters.shared.settings import LengthRuleSettings
from paceline.errors import DrafterError
from paceline.llm import LLM
from papers.specdec_pp.rules import ORACLE


class OracleRule(LengthRule):
    """Stops a draft just before its first token that differs from the target's answer.

    With n differing tokens, the target runs n + 1 times, and no verified token is discarded (lemma
    2.1). The differing token is removed before verification. This is only allowed if draft tokens
    are not sampled.

    Args:
        answers: The target's answer to each prompt.
    """

    checks_tokens = True
    stops_at_end = True

    def __init__(self, answers: Mapping[tuple[int, ...], Sequence[int]]) -> None:
        super().__init__(LengthRuleSettings().max_tokens)
        self._answers = answers

    def stop_after(self, new: NewTokens) -> list[int | None]:
        """For each chain, return the number of new tokens before the first difference.

        Raises:
            DrafterError: A prompt has no answer, or a draft contains sampled tokens.
        """
        return [
            self._first_difference(chain, run)
            for chain, run in zip(new.chains, new.runs, strict=True)
        ]

    def _first_difference(self, chain: Chain, run: list[int]) -> int | None:
        if chain.draws:
            raise DrafterError(
                "oracle: the draft has drawn tokens, which must all be verified. Use temperature"
                " 0, or verification='follow' with answers of the same seed."
            )
        request = chain.request
        answer = self._answers.get(tuple(request.token_ids[: request.prompt_length]))
        if answer is None:
            raise DrafterError(
                f"oracle: a prompt of {request.prompt_length} tokens is not among the"
                f" {len(self._answers)} prompts with answers. Record the target's answer to every"
                " prompt."
            )
        start = len(request) - request.prompt_length
        for count, token in enumerate(run):
            if list(answer[start + count : start + count + 1]) != [token]:
                return count
        return None


class TargetAnswerCache(Mapping[tuple[int, ...], list[int]]):
    """Generates the target's answer to a prompt on the first access, and stores it."""

    def __init__(self, llm: LLM, params: SamplingParams) -> None:
        self._llm, self._params = llm, params
        self._known: dict[tuple[int, ...], list[int]] = {}

    def __getitem__(self, prompt: tuple[int, ...]) -> list[int]:
        if prompt not in self._known:
            self._known[prompt] = self._llm.generate([list(prompt)], self._params)[0].token_ids
        return self._known[prompt]

    def __iter__(self) -> Iterator[tuple[int, ...]]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)


def oracle(answers: Mapping[tuple[int, ...], Sequence[int]]) -> dict[str, Maker]:
    """Return a factory for the oracle's drafter."""
    return {
        ORACLE: lambda draft: DraftModel(
            DraftModelOptions(use_prompt_lookup=False), draft, OracleRule(answers)
        )
    }
