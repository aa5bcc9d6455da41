"""Measure the decoding cost of each stopping threshold.

With `threshold=auto`, the drafter chooses a threshold from these costs.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from transformers import PreTrainedModel

from paceline.core.sampling_params import SamplingParams
from paceline.drafters.specdec_pp.card import ThresholdPoint
from paceline.drafters.specdec_pp.drafter import SpecDecPP, SpecDecPPOptions
from paceline.drafters.specdec_pp.head import AcceptanceHead
from paceline.errors import ConfigError
from paceline.llm import LLM
from paceline.model.loading import draft_lm
from paceline.report.progress import progress_bar
from paceline.training.acceptance_head.recording import Recording
from paceline.training.acceptance_head.settings import THRESHOLDS

_SAMPLING = ("max_new_tokens", "temperature", "top_k", "top_p", "min_p")


def calibrate(
    head: AcceptanceHead,
    recordings: Sequence[Recording],
    target: PreTrainedModel,
    draft: PreTrainedModel,
    limit: int = 0,
    thresholds: Sequence[float] = THRESHOLDS,
    progress: bool = False,
) -> AcceptanceHead:
    """Measure the cost of each stopping threshold, and store the costs in the head.

    The cost consists of target forward passes and discarded draft tokens, both per generated token.
    The function decodes the head's development prompts with each threshold. The draft budget is
    off, because it would adapt the drafts to the speed of this machine.

    Args:
        head: Acceptance head to measure.
        recordings: Recordings that contain the head's development prompts.
        target: Target model.
        draft: Draft model of the head.
        limit: Maximum number of prompts from each recording, chosen to cover all prompt lengths; 0
            (default) uses all prompts.
        thresholds: Stopping thresholds to measure: rejection probabilities above 0 and below 1.
        progress: Whether to show a progress bar.
    Returns:
        A copy of the head with the measured costs.
    Raises:
        ConfigError: The recordings contain none of the head's development prompts.
    """
    prompts, params = _development_prompts(head, recordings, limit)
    attached, draft_model = head.for_draft(draft), draft_lm(draft)
    curve = []
    with progress_bar(shown=progress) as bar:
        for threshold in bar.track(thresholds, description="decoding"):
            options = SpecDecPPOptions(threshold=threshold, budget=False)
            drafter = SpecDecPP(options, draft_model, attached)
            llm = LLM(target, drafter, max_batch=recordings[0].settings["batch"])
            results = [completion.stats for completion in llm.generate(prompts, params)]
            tokens = sum(stats.new_tokens for stats in results)
            forwards = sum(stats.target_forwards for stats in results)
            discarded = sum(stats.drafted_tokens - stats.accepted_tokens for stats in results)
            curve.append(ThresholdPoint(threshold, forwards / tokens, discarded / tokens))
    card = dataclasses.replace(head.card, curve=tuple(curve))
    return AcceptanceHead(card, head.tensors)


def _development_prompts(
    head: AcceptanceHead, recordings: Sequence[Recording], limit: int
) -> tuple[list[list[int]], list[SamplingParams]]:
    prompts: list[list[int]] = []
    params: list[SamplingParams] = []
    for recording in recordings:
        options = {name: recording.settings[name] for name in _SAMPLING}
        numbers = [
            number for number, name in enumerate(recording.names) if name in head.card.dev_names
        ]
        # The prompts are sorted by length, so every n-th prompt covers all lengths.
        for number in numbers[:: math.ceil(len(numbers) / limit) if limit else 1]:
            prompts.append(recording.prompt_ids[number])
            params.append(SamplingParams(**options, seed=recording.settings["seed"] + number))
    if not prompts:
        raise ConfigError(
            "head calibrate: got no development prompts of this head; expected a recording on"
            " which the head was trained. Pass that recording."
        )
    return prompts, params


def print_curve(head: AcceptanceHead, console: Console | None = None) -> None:
    """Print a table with the measured cost of each stopping threshold."""
    table = Table(box=None, pad_edge=False)
    for heading in ("threshold", "verification rate", "discard rate"):
        table.add_column(heading, justify="right")
    for point in head.card.curve:
        table.add_row(
            f"{point.threshold:.2f}", f"{point.verification_rate:.4f}", f"{point.discard_rate:.4f}"
        )
    (console or Console()).print(table)
