"""How much of a rejected draft the target would have said all the same (Zhao et al. 2024, section 2.5: table 1, figure 3)."""

from __future__ import annotations

import time
from collections.abc import Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from rich.console import Console
from rich.progress import track

from paceline.bench.methods import Watch
from paceline.bench.models import Models, make_units, torch_threads
from paceline.bench.prompts import Prompt
from paceline.bench.settings import BenchConfig
from paceline.drafter import Outcome
from paceline.drafters import create
from paceline.llm import LLM
from paceline.loading import draft_lm

LONGEST = 8  # substrings that are counted


@dataclass(frozen=True, slots=True)
class Matches:
    """Sums over the verifications of drafts of one length, of one task.

    Attributes:
        prefix: tokens accepted, len(LCP) of the paper. equal: tokens that are the target's own in their place, #Match-1.
        rejected: verifications that found a wrong token; discarded: tokens behind the first wrong one.
        substrings: per length k, from 1 on, #Match-k of the discarded tokens, equation 7.
    """

    task: str
    verifications: int
    prefix: int
    equal: int
    rejected: int
    discarded: int
    substrings: tuple[int, ...]

    @staticmethod
    def of(task: str, drafts: Iterable[Seq[bool]]) -> Matches:
        """From what `own_tokens` says of every draft."""
        drafts = list(drafts)
        prefixes = [next((place for place, own in enumerate(draft) if not own), len(draft)) for draft in drafts]
        behind = [draft[prefix + 1 :] for draft, prefix in zip(drafts, prefixes, strict=True) if prefix < len(draft)]
        return Matches(
            task, len(drafts), sum(prefixes), sum(map(sum, drafts)), len(behind), sum(map(len, behind)),
            tuple(sum(_runs(draft, length) for draft in behind) for length in range(1, LONGEST + 1)),
        )  # fmt: skip

    @staticmethod
    def total(tasks: Seq[Matches]) -> Matches:
        """All tasks together."""
        return Matches(
            "all", sum(one.verifications for one in tasks), sum(one.prefix for one in tasks), sum(one.equal for one in tasks),
            sum(one.rejected for one in tasks), sum(one.discarded for one in tasks),
            tuple(sum(one.substrings[place] for one in tasks) for place in range(LONGEST)),
        )  # fmt: skip

    def per_verification(self) -> tuple[float, float]:
        """Means of the accepted tokens, and of those equal to the target's; table 1."""
        return self.prefix / self.verifications, self.equal / self.verifications

    def per_rejection(self) -> list[float]:
        """Means of #Match-k over the verifications that rejected something, per k; figure 3. Empty if none did."""
        return [count / self.rejected for count in self.substrings] if self.rejected else []


@dataclass(frozen=True, slots=True)
class MatchStudy:
    """Per task, in their order, what was counted; tasks without a draft of full length are left out."""

    gamma: int
    prompts: int
    complete: bool
    tasks: tuple[Matches, ...]


def own_tokens(outcome: Outcome) -> tuple[bool, ...]:
    """Per token of a drafted chain whether the target, given the draft before it, says the same."""
    return tuple(token == said for token, said in zip(outcome.tree.token_ids, outcome.target_argmax, strict=False))


def study(config: BenchConfig, models: Models, prompts: Seq[Prompt], gamma: int, progress: bool = True) -> MatchStudy:
    """Answer prompts by plain speculative decoding, and count. Ctrl-C ends it early, as does `config.max_seconds`.

    Drafts at the end of an answer, or at the draft's end of sequence, are shorter than gamma and do not count.

    Raises:
        CapacityError: the answers do not fit into the models' context.
    """
    found: dict[str, list[tuple[bool, ...]]] = {prompt.category: [] for prompt in prompts}
    seen: list[Outcome] = []
    assert models.draft is not None  # its drafter is among the methods that `models` were loaded for
    drafter = Watch(create(f"draft_model:length={gamma}", draft_model=draft_lm(models.draft)), seen.append)
    llm = LLM(models.target, drafter, tokenizer=models.tokenizer)
    units = make_units(config, models, prompts)
    start, answered, complete = time.perf_counter(), 0, True
    try:
        with torch_threads(config.threads):
            for unit in track(units, "matches", console=Console(stderr=True), transient=True, disable=not progress):
                seen.clear()
                llm.generate(list(unit.token_ids), config.sampling())
                found[unit.prompts[0].category] += [own_tokens(outcome) for outcome in seen if len(outcome.tree) == gamma]
                answered += 1
                if 0 < config.max_seconds < time.perf_counter() - start:
                    break
    except KeyboardInterrupt:
        complete = False
    return MatchStudy(gamma, answered, complete, tuple(Matches.of(task, drafts) for task, drafts in found.items() if drafts))


def _runs(draft: Seq[bool], length: int) -> int:
    """Places where `length` tokens in a row are right."""
    return sum(all(draft[start : start + length]) for start in range(len(draft) - length + 1))
