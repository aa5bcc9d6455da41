"""Count the tokens of rejected drafts that the target would have chosen anyway.

The counts reproduce table 1 and figure 3 of Zhao et al. 2024, section 2.5.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from paceline.bench.methods import ObservedDrafter
from paceline.bench.models import Models, make_units, torch_threads
from paceline.bench.settings import BenchConfig
from paceline.core.drafter import Outcome
from paceline.drafters import create
from paceline.llm import LLM
from paceline.model.loading import draft_lm
from paceline.report.prompts import Prompt
from papers.config import TimeLimit
from papers.ouroboros.result import Matches, MatchStudy


def own_tokens(outcome: Outcome) -> tuple[bool, ...]:
    """For each token in a draft chain, return whether it is the target's prediction.

    The target predicts the token at each position from the draft tokens before that position.
    """
    return tuple(
        token == predicted
        for token, predicted in zip(outcome.tree.token_ids, outcome.target_argmax, strict=False)
    )


def study(
    config: BenchConfig,
    models: Models,
    prompts: Sequence[Prompt],
    gamma: int,
    progress: bool = True,
) -> MatchStudy:
    """Count matching tokens in drafts from plain speculative decoding.

    Ctrl-C and `config.max_seconds` end the study early. Only drafts with `gamma` tokens count.
    Drafts are shorter at the end of an answer and after an end-of-sequence token.

    Raises:
        CapacityError: The answers do not fit into the models' context.
    """
    by_task: dict[str, list[tuple[bool, ...]]] = {prompt.category: [] for prompt in prompts}
    outcomes: list[Outcome] = []
    assert models.draft is not None  # `models` were loaded for its drafter
    drafter = ObservedDrafter(
        create(f"draft_model:max_draft_tokens={gamma}", draft_model=draft_lm(models.draft)),
        outcomes.append,
    )
    units = make_units(config, models, prompts)
    answered, complete = 0, False
    with torch_threads(config.models.threads), contextlib.suppress(KeyboardInterrupt):
        llm = LLM(models.target, drafter, tokenizer=models.tokenizer)
        for unit in TimeLimit(config.max_seconds).within(units, "matches", progress):
            outcomes.clear()
            llm.generate(list(unit.token_ids), config.sampling)
            by_task[unit.prompts[0].category] += [
                own_tokens(outcome) for outcome in outcomes if len(outcome.tree) == gamma
            ]
            answered += 1
        complete = True
    return MatchStudy(
        gamma,
        answered,
        complete,
        tuple(Matches.of(task, drafts) for task, drafts in by_task.items() if drafts),
    )
