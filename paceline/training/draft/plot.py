"""Plot the learning curve and the evaluation of a draft model."""

from __future__ import annotations

from pathlib import Path

from paceline.report.drawing import COLOURS, MARKERS, label, line, page, reference_line, save
from paceline.training.draft.evaluate import ALL, DraftJudgement
from paceline.training.draft.folder import TrainingRecord


def draw_curve(record: TrainingRecord, path: str | Path) -> None:
    """Plot losses and held-out acceptance over training time, as a PNG file.

    Raises:
        ConfigError: matplotlib is not installed, or the file cannot be written.
    """
    figure = page(8.4, 3.8)
    left, right = figure.subplots(1, 2)
    about, settings, curve = record.about, record.settings, record.curve
    minutes = [point.minutes for point in curve]
    for kind, colour, marker in zip(curve[-1].losses, COLOURS, MARKERS, strict=False):
        line(left, minutes, [point.losses.get(kind) for point in curve], kind, colour, marker)
    label(left, "Loss of the last steps", "minutes", "nats per token", "both", legend=2)
    scores = {
        f"accepted per chain of {settings['length']}": [point.per_chain for point in curve],
        "share of tokens that agree": [point.agreement for point in curve],
    }
    for (name, values), colour, marker in zip(scores.items(), COLOURS, MARKERS, strict=False):
        line(right, minutes, values, name, colour, marker)
    label(right, "On held-out answers", "minutes", "", "both", legend=2)
    words = (("hidden", "wide"), ("layers", "layers"), ("neurons", "neurons"))
    sizes = [f"{settings[name]} {word}" for name, word in words if settings[name]]
    notes = [
        f"draft for {about['target']}",
        *sizes,
        f"seed {settings['seed']}",
        f"{about['answer_tokens']} tokens of answers",
        f"{about['text_tokens']} of texts",
    ]
    save(figure, path, notes, 110)


def draw_judgement(judgement: DraftJudgement, path: str | Path) -> None:
    """Plot acceptance by chain position, and speed by chain length, as a PNG file.

    Raises:
        ConfigError: matplotlib is not installed, or the file cannot be written.
    """
    figure = page(8.4, 3.8)
    left, right = figure.subplots(1, 2)
    colour, marker = COLOURS[0], MARKERS[0]
    positions = list(range(1, judgement.length + 1))
    rates = list(judgement.chains[ALL].by_position)
    line(left, positions, rates, "all prompts", colour, marker)
    left.set_ylim(0, 1)
    left.set_xticks(positions)
    label(left, "Acceptance rate, given those before", "position in the chain", "", "both")
    lengths = [gain.length for gain in judgement.gains]
    line(right, lengths, [gain.speed for gain in judgement.gains], "", colour, marker)
    reference_line(right)
    label(right, "Measured speed over plain decoding", "K, tokens of a chain", "", "both")
    notes = [f"{judgement.answers} greedy answers", f"cost ratio {judgement.cost_ratio:.3f}"]
    save(figure, path, notes, 110)
