"""How much of a rejected draft the target would have said all the same (Zhao et al. 2024,
section 2.5: table 1, figure 3).
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from paceline.bench.methods import ObservedDrafter
from paceline.bench.models import Models, make_units, torch_threads
from paceline.bench.papers.config import TimeLimit
from paceline.bench.papers.ouroboros.result import Matches, MatchStudy
from paceline.bench.settings import BenchConfig
from paceline.core.drafter import Outcome
from paceline.drafters import create
from paceline.llm import LLM
from paceline.model.loading import draft_lm
from paceline.report.prompts import Prompt


def own_tokens(outcome: Outcome) -> tuple[bool, ...]:
    """Return per token of a drafted chain whether the target, given the draft before it, says
    the same.
    """
    return tuple(
        token == said
        for token, said in zip(outcome.tree.token_ids, outcome.target_argmax, strict=False)
    )


def study(
    config: BenchConfig,
    models: Models,
    prompts: Sequence[Prompt],
    gamma: int,
    progress: bool = True,
) -> MatchStudy:
    """Answer prompts by plain speculative decoding, and count. Ctrl-C ends it early, as does
    `config.max_seconds`.

    Drafts at the end of an answer, or at the draft's end of sequence, are shorter than gamma and do
    not count.

    Raises:
        CapacityError: the answers do not fit into the models' context.
    """
    found: dict[str, list[tuple[bool, ...]]] = {prompt.category: [] for prompt in prompts}
    seen: list[Outcome] = []
    assert (
        models.draft is not None
    )  # its drafter is among the methods that `models` were loaded for
    drafter = ObservedDrafter(
        create(f"draft_model:max_draft_tokens={gamma}", draft_model=draft_lm(models.draft)),
        seen.append,
    )
    units = make_units(config, models, prompts)
    answered, complete = 0, False
    with torch_threads(config.models.threads), contextlib.suppress(KeyboardInterrupt):
        llm = LLM(models.target, drafter, tokenizer=models.tokenizer)
        for unit in TimeLimit(config.max_seconds).within(units, "matches", progress):
            seen.clear()
            llm.generate(list(unit.token_ids), config.sampling)
            found[unit.prompts[0].category] += [
                own_tokens(outcome) for outcome in seen if len(outcome.tree) == gamma
            ]
            answered += 1
        complete = True
    return MatchStudy(
        gamma,
        answered,
        complete,
        tuple(Matches.of(task, drafts) for task, drafts in found.items() if drafts),
    )
