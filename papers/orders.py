"""Order the prompts of several tasks, for drafters that learn between prompts.

The orders are from Zhao et al. 2024, section 3.3.
"""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from paceline.report.prompts import Prompt, load_prompts
from paceline.util.options import PromptOptions
from papers.order_settings import TASK_SIZE
from papers.part import BenchPart


@dataclass(frozen=True, slots=True)
class Order:
    """An order of the prompts, and its measurement.

    Attributes:
        consecutive: Number of consecutive prompts from the same task; None if the order was random.
        part: Run over all prompts in this order, with drafters whose cache is emptied or kept after
            each prompt.
    """

    consecutive: int | None
    part: BenchPart


def by_task(prompts: Sequence[Prompt], most: int) -> list[list[Prompt]]:
    """Return the first `most` prompts of every category, one list per category."""
    tasks: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        tasks.setdefault(prompt.category, []).append(prompt)
    return [task[:most] for task in tasks.values()]


def in_turn(tasks: Sequence[Sequence[Prompt]], consecutive: int) -> list[Prompt]:
    """Take `consecutive` prompts from each task in turn (figure 6 of the paper)."""
    longest = max(map(len, tasks))
    return [
        prompt
        for start in range(0, longest, consecutive)
        for task in tasks
        for prompt in task[start : start + consecutive]
    ]


def shuffled(tasks: Sequence[Sequence[Prompt]], seed: int) -> list[Prompt]:
    """Return the prompts of all tasks in a random order."""
    prompts = [prompt for task in tasks for prompt in task]
    random.Random(seed).shuffle(prompts)
    return prompts


def scaled(consecutive: int, size: int) -> int:
    """Scale a number of consecutive prompts from the paper's 20 per task to `size`."""
    return math.ceil(size * consecutive / TASK_SIZE)


def prompts_in_sets(selection: PromptOptions) -> list[Prompt]:
    """Return the prompts in an order that takes one from each set in turn.

    If there are several files, each file is a set; otherwise, each category is a set. Of the
    built-in prompts, the first `limit` of each category are used.
    """
    paths, limit, every = selection.prompts, selection.limit, selection.every
    if not paths:
        embedded = load_prompts()
        return in_turn(by_task(embedded, limit or len(embedded)), 1)
    prompts = [
        (Path(path).stem, prompt) for path in paths for prompt in load_prompts([path], limit, every)
    ]
    named = [
        dataclasses.replace(prompt, category=name) if len(paths) > 1 else prompt
        for name, prompt in prompts
    ]
    return in_turn(by_task(named, len(named)), 1)
