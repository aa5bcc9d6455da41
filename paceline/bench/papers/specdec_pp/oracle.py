"""The oracle of the SpecDec++ paper (Huang et al. 2024, section 2.1): drafts end where the
models would disagree.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from paceline.bench.papers.specdec_pp.rules import ORACLE
from paceline.bench.run import Maker
from paceline.core.request import SamplingParams
from paceline.drafters.draft_model.drafter import DraftModel, DraftModelOptions
from paceline.drafters.shared.length_rules import MOST_TOKENS, Chain, LengthRule, NewTokens
from paceline.errors import DrafterError
from paceline.llm import LLM


class OracleRule(LengthRule):
    """Stops just before each disagreement, as only hindsight can: for measurements.

    No token is discarded and the target runs once more than there are disagreements (lemma 2.1).
    Drops the token that differs, which is allowed for guesses only.

    Args:
        answers: per prompt what the target answers.
    """

    checks_tokens = True
    stops_at_end = True

    def __init__(self, answers: Mapping[tuple[int, ...], Sequence[int]]) -> None:
        super().__init__(MOST_TOKENS)
        self._answers = answers

    def stop_after(self, new: NewTokens) -> list[int | None]:
        """Return the place before the first token that is not the answer's, per chain.

        Raises:
            DrafterError: a prompt without an answer, or a draft of draws.
        """
        return [
            self._first_difference(chain, run)
            for chain, run in zip(new.chains, new.runs, strict=True)
        ]

    def _first_difference(self, chain: Chain, run: list[int]) -> int | None:
        if chain.draws:
            raise DrafterError(
                "oracle: got a draft of draws, which must be verified; expected guesses, of which"
                " it may drop one. Use"
                " temperature 0, or verification='follow' with answers of the same seed."
            )
        request = chain.request
        answer = self._answers.get(tuple(request.token_ids[: request.prompt_length]))
        if answer is None:
            raise DrafterError(
                f"oracle: got no answer to a prompt of {request.prompt_length} tokens; expected"
                f" one of the {len(self._answers)}"
                " that it has answers to. Record what the target answers to every prompt."
            )
        place = len(request) - request.prompt_length
        for count, token in enumerate(run):
            if list(answer[place + count : place + count + 1]) != [token]:
                return count
        return None


class TargetAnswerCache(Mapping[tuple[int, ...], list[int]]):
    """What the target answers to each prompt, found out when it is first asked for."""

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
    """Return the drafter that knows what the target will answer."""
    return {
        ORACLE: lambda draft: DraftModel(
            DraftModelOptions(use_prompt_lookup=False), draft, OracleRule(answers)
        )
    }
