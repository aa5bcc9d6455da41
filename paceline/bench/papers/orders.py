"""Orders in which prompts of several tasks are asked, for what a drafter keeps between them
(Zhao et al. 2024, section 3.3).
"""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from paceline.bench.papers.part import BenchPart
from paceline.report.prompts import Prompt, load_prompts
from paceline.util.options import PromptOptions

CONSECUTIVE = (20, 10, 4, 1)  # of the 20 prompts each task of the paper has
TASK_SIZE = CONSECUTIVE[0]


@dataclass(frozen=True, slots=True)
class Order:
    """One order, measured.

    Attributes:
        consecutive: prompts of a task that follow one another; None = the order was drawn.
        part: cold and warm drafters over all prompts in that order.
    """

    consecutive: int | None
    part: BenchPart


def by_task(prompts: Sequence[Prompt], most: int) -> list[list[Prompt]]:
    """Return the first `most` prompts of every category, each category a list of its own."""
    tasks: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        tasks.setdefault(prompt.category, []).append(prompt)
    return [task[:most] for task in tasks.values()]


def in_turn(tasks: Sequence[Sequence[Prompt]], consecutive: int) -> list[Prompt]:
    """Return `consecutive` prompts of each task in turn, until all have been asked; figure 6 of
    the paper.
    """
    longest = max(map(len, tasks))
    return [
        prompt
        for at in range(0, longest, consecutive)
        for task in tasks
        for prompt in task[at : at + consecutive]
    ]


def shuffled(tasks: Sequence[Sequence[Prompt]], seed: int) -> list[Prompt]:
    """Return all prompts in a random order."""
    prompts = [prompt for task in tasks for prompt in task]
    random.Random(seed).shuffle(prompts)
    return prompts


def scaled(consecutive: int, size: int) -> int:
    """Return the consecutive number that is to tasks of `size` prompts what `consecutive` is to
    the paper's of 20.
    """
    return math.ceil(size * consecutive / TASK_SIZE)


def prompts_in_sets(selection: PromptOptions) -> list[Prompt]:
    """Return prompts, one of every set in turn. Sets are the files if there are several, else the
    categories.

    Args:
        selection: of the embedded prompts the first `limit` of each category are taken.
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
