"""The figures of the SSSD paper that count accepted tokens (Marzollo et al. 2024): figures 4 and
5, section 4.2.
"""

from __future__ import annotations

from paceline.bench.papers.part import PICTURE
from paceline.bench.papers.sssd.answers import GREEDY, TEMPERATURES, TOP_K, TOP_P, temperature_name
from paceline.bench.papers.sssd.replays import PIA, REST, WARM_TOKENS
from paceline.bench.papers.sssd.result import (
    BOTH,
    NOTHING,
    REQUEST,
    STORE,
    WINDOW,
    SssdResult,
    Study,
    published,
)
from paceline.report.tables import Cell, Column, Table

PAPER_TEMPERATURES = {
    0.5: -0.015,
    1.0: -0.015,
    2.0: -0.2,
}  # change of the acceptance rate against 0: "1-2 %", "around 20 %"
RIVALS = (published(BOTH), REST, PIA)  # beside sssd in figures 4b and c
RETRIEVAL_SIZES = (16, 64)  # s_q whose time of retrieval is shown
PER_STEP = (
    "Tokens per step: accepted ones and the one that the target adds; plain decoding has 1. s_q"
    " counts the root of the tree."
)


def figure_4a(result: SssdResult) -> Table:
    """Return accepted tokens by source."""
    study = result.replays or NOTHING
    names = (BOTH, REQUEST, *map(published, (BOTH, REQUEST, STORE)))
    rows = []
    for size in study.sizes:
        alone = [study.rate(published(source), size) for source in (REQUEST, STORE)]
        together = None if None in alone else 1 + sum(one - 1 for one in alone if one is not None)
        rows.append(
            (
                size,
                *(study.rate(name, size) for name in names),
                together,
                study.rate(published(WINDOW), size),
            )
        )
    notes = (
        f"{PER_STEP} {_replayed(study)}",
        f"request: prompt and own output. datastore: {result.store_tokens:,} tokens. With paper's:"
        " its hand-set weights; else the"
        " calibrated fusion. sum: what the two sources accept alone, added up; the paper says that"
        " both nearly reach it.",
        "datastore alone: the drafter is shown the newest 4 tokens of the request, its query;"
        " window: what these 4 give without"
        " a datastore.",
        PICTURE,
    )
    shown = [Column("s_q"), *names, "sum, paper's", "window, paper's"]
    return Table.of("Figure 4a: tokens per step by source", shown, rows, notes)


def figure_4bc(result: SssdResult) -> Table:
    """Return sssd beside REST and PIA, with the time of retrieval."""
    study = result.replays or NOTHING
    sizes, sets = study.sizes[1:], list(study.answers) if len(study.answers) > 1 else []
    rows = []
    for name in (*sets, None):
        for method in rivals(study):
            found = [study.result(method, size, name) for size in RETRIEVAL_SIZES]
            rates = (study.rate(method, size, name) for size in sizes)
            rows.append(
                (
                    f"{name or 'all'}: {method}",
                    *rates,
                    *(one and one.microseconds_per_step for one in found),
                )
            )
    notes = (
        f"{PER_STEP} {_replayed(study)}",
        "us: microseconds of the drafter per sequence and step, batch 1, one pass beside whatever"
        " else ran. both (request, where"
        " there is no datastore) is sssd. rest reads the same datastore; it and pia are written"
        " anew after their papers, pia in"
        f" plain Python. It learns up to {WARM_TOKENS:,} tokens of the datastore first (the paper:"
        " 10,000 answers), then every"
        " answer here.",
        PICTURE,
    )
    times = (Column(f"us s_q = {size}", ".0f") for size in RETRIEVAL_SIZES)
    title = "Figures 4b and 4c: tokens per step and time of retrieval, against REST and PIA"
    return Table.of(
        title, ["prompts: method", *(f"s_q = {size}" for size in sizes), *times], rows, notes
    )


def rivals(study: Study) -> list[str]:
    """Return the methods of figures 4b and c that were replayed."""
    return [name for name in (study.fusions[0], *RIVALS) if name in study.methods]


def section_4_2(result: SssdResult) -> Table:
    """Return acceptance by temperature."""
    study = result.temperatures or NOTHING
    methods = [(method, size) for size in study.sizes[1:] for method in study.fusions]
    rows: list[list[Cell]] = []
    for temperature in (0.0, *TEMPERATURES):
        name = temperature_name(temperature)
        if name in study.answers:
            row: list[Cell] = [name, study.answers[name], study.tokens[name]]
            for method, size in methods:
                row += [
                    study.rate(method, size, name),
                    change_of_accepted(study, method, size, name),
                ]
            rows.append([*row, PAPER_TEMPERATURES.get(temperature)])
    notes = (
        f"Sampled with top-k {TOP_K} and top-p {TOP_P}, as in the paper; drafts are guesses, the"
        " target's own draw is followed."
        " Tokens per step, and how the accepted tokens per step differ from those of the greedy"
        " answers to the same prompts.",
        "Other temperatures give other texts, which repeat the request and the datastore more or"
        " less: that is in it too.",
    )
    shown = [
        one
        for name, size in methods
        for one in (f"{name}, s_q = {size}", Column(f"change, s_q = {size}", "+.1%"))
    ]
    headings = ["", Column("answers"), Column("tokens"), *shown, Column("paper", "+.1%")]
    return Table.of("Section 4.2: temperature", headings, rows, notes)


def change_of_accepted(study: Study, method: str, size: int, name: str) -> float | None:
    """Return accepted tokens per step on a set over those on the greedy answers, less one."""
    one, greedy = study.result(method, size, name), study.result(method, size, GREEDY)
    if one is None or greedy is None or not greedy.accepted_per_step:
        return None
    return one.accepted_per_step / greedy.accepted_per_step - 1


def figure_5(result: SssdResult) -> Table:
    """Return the tokens per step in two vocabularies."""
    found, rows = result.vocabularies, []
    title, note = (
        "Figure 5: vocabularies",
        f"The paper: Llama-2 (32,000 tokens) and Llama-3 (128,256), own answers each. {PICTURE}",
    )
    if found is None:
        return Table.of(title, ["s_q"], (), (note,))
    study = found.study
    for size in study.sizes:
        row: list[Cell] = [size]
        for name in found.sizes:
            row += [study.rate(method, size, name) for method in study.fusions]
            row.append(found.characters_per_step(study.fusions[0], size, name))
        rows.append(row)
    known = "; ".join(
        f"{name}: {size:,} tokens, {found.characters_per_token(name):.2f} characters each,"
        f" {found.store_tokens[name]:,} stored"
        for name, size in found.sizes.items()
    )
    notes = (
        f"The same answers and the same datastore in each vocabulary. {known}.",
        *(
            []
            if len(found.sizes) > 1
            else ["mistral-common brings a second one: pip install 'paceline[replay]'."]
        ),
        note,
    )
    kinds = {"tokens/ step": ".2f", "paper's weights": ".2f", "characters/ step": ".1f"}
    shown = [
        Column(f"{text}, {name}", form) for name in found.sizes for text, form in kinds.items()
    ]
    return Table.of(title, [Column("s_q"), *shown], rows, notes)


def _replayed(study: Study) -> str:
    return (
        f"Replayed: {sum(study.answers.values())} greedy answers of the target,"
        f" {sum(study.tokens.values())} tokens."
    )
