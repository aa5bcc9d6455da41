"""Pictures of a draft: how it learnt, and what it is worth."""

from __future__ import annotations

from pathlib import Path

from paceline.report.drawing import COLOURS, MARKERS, label, line, page, reference_line, save
from paceline.training.draft.evaluate import ALL, DraftJudgement
from paceline.training.draft.folder import TrainingRecord


def draw_curve(record: TrainingRecord, path: str | Path) -> None:
    """Draw the losses and what chains were worth on answers held back, over the minutes, into a PNG
    file.

    Raises:
        ConfigError: matplotlib is not installed, or the file cannot be written.
    """
    figure = page(8.4, 3.8)
    left, right = figure.subplots(1, 2)
    minutes = [point.minutes for point in record.curve]
    for place, kind in enumerate(record.curve[-1].losses):
        line(
            left,
            minutes,
            [point.losses.get(kind) for point in record.curve],
            kind,
            COLOURS[place],
            MARKERS[place],
        )
    label(left, "Loss of the last steps", "minutes", "nats a token", "both", legend=2)
    length = record.settings["length"]
    line(
        right,
        minutes,
        [point.per_chain for point in record.curve],
        f"accepted a chain of {length}",
        COLOURS[0],
        MARKERS[0],
    )
    line(
        right,
        minutes,
        [point.agreement for point in record.curve],
        "share of tokens that agree",
        COLOURS[1],
        MARKERS[1],
    )
    label(right, "On answers held back", "minutes", "", "both", legend=2)
    about, settings = record.about, record.settings
    named = (("hidden", "wide"), ("layers", "layers"), ("neurons", "neurons"))
    sizes = [
        *(f"{settings[name]} {word}" for name, word in named if settings[name]),
        f"seed {settings['seed']}",
    ]
    learnt = [f"{about['answer_tokens']} tokens of answers", f"{about['text_tokens']} of texts"]
    save(figure, path, [f"draft for {about['target']}", *sizes, *learnt], 110)


def draw_judgement(judgement: DraftJudgement, path: str | Path) -> None:
    """Draw acceptance by place in a chain, and what drafting would gain by K, into a PNG file.

    Raises:
        ConfigError: matplotlib is not installed, or the file cannot be written.
    """
    figure = page(8.4, 3.8)
    left, right = figure.subplots(1, 2)
    places = list(range(1, judgement.length + 1))
    line(
        left, places, list(judgement.chains[ALL].by_position), "all prompts", COLOURS[0], MARKERS[0]
    )
    left.set_ylim(0, 1)
    left.set_xticks(places)
    label(left, "Chance of acceptance, given those before", "place in the chain", "", "both")
    line(
        right,
        [gain.length for gain in judgement.gains],
        [gain.speed for gain in judgement.gains],
        "",
        COLOURS[0],
        MARKERS[0],
    )
    reference_line(right)
    label(right, "Speed over plain decoding, as measured", "K, tokens of a chain", "", "both")
    save(
        figure,
        path,
        [f"{judgement.answers} greedy answers", f"cost ratio {judgement.cost_ratio:.3f}"],
        110,
    )
