"""The figures of the SSSD paper that count accepted tokens (Marzollo et al. 2024): figures 4 and 5, section 4.2."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline.bench.paper import Section
from paceline.bench.paper_lines import text_of
from paceline.bench.sssd_answers import GREEDY, TEMPERATURES, TOP_K, TOP_P, temperature_name
from paceline.bench.sssd_replays import BOTH, LEAK, NOTHING, PIA, REQUEST, REST, STORE, WARM_TOKENS, Study, published

if TYPE_CHECKING:
    from paceline.bench.paper_sssd import SssdResult

OWN = "the model's own"  # vocabulary
SAMPLED_SIZES = (16, 32)  # s_q of section 4.2
PAPER_TEMPERATURES = {0.5: -0.015, 1.0: -0.015, 2.0: -0.2}  # change of the acceptance rate against 0: "1-2 %", "around 20 %"
RIVALS = (published(BOTH), REST, PIA)  # beside sssd in figures 4b and c
RETRIEVAL_SIZES = (16, 64)  # s_q whose time of retrieval is shown
PICTURE = "The paper shows its values as a picture only: no numbers stand beside these."
PER_STEP = (
    "Tokens per step: accepted ones and the one that the target adds; plain decoding has 1. s_q counts the root of the tree."
)


def figure_4a(result: SssdResult) -> Section:
    """Accepted tokens by source."""
    study = result.replays or NOTHING
    names = (BOTH, REQUEST, *map(published, (BOTH, REQUEST, STORE)))
    rows = []
    for size in study.sizes:
        alone = [study.rate(published(source), size) for source in (REQUEST, STORE)]
        together = None if None in alone else 1 + sum(one - 1 for one in alone if one is not None)
        shown = (*(study.rate(name, size) for name in names), together, study.rate(published(LEAK), size))
        rows.append((str(size), *map(text_of, shown)))
    notes = (
        f"{PER_STEP} {replayed(study)}",
        f"request: prompt and own output. datastore: {result.store_tokens:,} tokens. With paper's: its hand-set weights; else the"
        " calibrated fusion. sum: what the two sources accept alone, added up; the paper says that both nearly reach it.",
        "datastore alone: the drafter is shown the newest 4 tokens of the request, its query; window: what these 4 give without"
        " a datastore.",
        PICTURE,
    )
    headings = ("s_q", *names, "sum, paper's", "window, paper's")
    return Section("Figure 4a: tokens per step by source", headings, tuple(rows), notes)


def figure_4bc(result: SssdResult) -> Section:
    """Against REST and PIA, with the time of retrieval."""
    study = result.replays or NOTHING
    sizes, sets = study.sizes[1:], list(study.answers) if len(study.answers) > 1 else []
    rows = []
    for name in (*sets, None):
        for method in rivals(study):
            found = [study.result(method, size, name) for size in RETRIEVAL_SIZES]
            times = [text_of(one.microseconds_per_step if one else None, ".0f") for one in found]
            rates = [text_of(study.rate(method, size, name)) for size in sizes]
            rows.append((f"{name or 'all'}: {method}", *rates, *times))
    notes = (
        f"{PER_STEP} {replayed(study)}",
        "us: microseconds of the drafter per sequence and step, batch 1, one pass beside whatever else ran. both (request, where"
        " there is no datastore) is sssd. rest reads the same datastore; it and pia are written anew after their papers, pia in"
        f" plain Python. It learns up to {WARM_TOKENS:,} tokens of the datastore first (the paper: 10,000 answers), then every"
        " answer here.",
        PICTURE,
    )
    headings = (*(f"s_q = {size}" for size in sizes), *(f"us s_q = {size}" for size in RETRIEVAL_SIZES))
    title = "Figures 4b and 4c: tokens per step and time of retrieval, against REST and PIA"
    return Section(title, ("prompts: method", *headings), tuple(rows), notes)


def rivals(study: Study) -> list[str]:
    """The methods of figures 4b and c that were replayed."""
    return [name for name in (study.fusions[0], *RIVALS) if name in study.methods]


def section_4_2(result: SssdResult) -> Section:
    """Acceptance against temperature."""
    study = result.temperatures or NOTHING
    columns = [(method, size) for size in study.sizes[1:] for method in study.fusions]
    rows = []
    for temperature in (0.0, *TEMPERATURES):
        name = temperature_name(temperature)
        if name in study.answers:
            row = [name, str(study.answers[name]), str(study.tokens[name])]
            for method, size in columns:
                change = change_of_accepted(study, method, size, name)
                row += [text_of(study.rate(method, size, name)), text_of(change, "+.1%")]
            rows.append((*row, text_of(PAPER_TEMPERATURES.get(temperature), "+.1%")))
    notes = (
        f"Sampled with top-k {TOP_K} and top-p {TOP_P}, as in the paper; drafts are guesses, the target's own draw is followed."
        " Tokens per step, and how the accepted tokens per step differ from those of the greedy answers to the same prompts.",
        "Other temperatures give other texts, which repeat the request and the datastore more or less: that is in it too.",
    )
    shown = (text for method, size in columns for text in (f"{method}, s_q = {size}", f"change, s_q = {size}"))
    return Section("Section 4.2: temperature", ("", "answers", "tokens", *shown, "paper"), tuple(rows), notes)


def change_of_accepted(study: Study, method: str, size: int, name: str) -> float | None:
    """Accepted tokens per step on a set over those on the greedy answers, less one."""
    one, greedy = study.result(method, size, name), study.result(method, size, GREEDY)
    if one is None or greedy is None or not greedy.accepted_per_step:
        return None
    return one.accepted_per_step / greedy.accepted_per_step - 1


def figure_5(result: SssdResult) -> Section:
    """Two vocabularies."""
    told = result.vocabularies
    title, note = (
        "Figure 5: vocabularies",
        f"The paper: Llama-2 (32,000 tokens) and Llama-3 (128,256), own answers each. {PICTURE}",
    )
    if told is None:
        return Section(title, ("s_q",), (), (note,))
    study, rows = told.study, []
    for size in study.sizes:
        row = [str(size)]
        for name in told.sizes:
            row += [text_of(study.rate(method, size, name)) for method in study.fusions]
            row.append(text_of(told.characters_per_step(study.fusions[0], size, name), ".1f"))
        rows.append(tuple(row))
    known = "; ".join(
        f"{name}: {size:,} tokens, {told.characters_per_token(name):.2f} characters each, {told.store_tokens[name]:,} stored"
        for name, size in told.sizes.items()
    )
    notes = (
        f"The same answers and the same datastore in each vocabulary. {known}.",
        *([] if len(told.sizes) > 1 else ["mistral-common brings a second one: pip install 'paceline[replay]'."]),
        note,
    )
    shown = (f"{text}, {name}" for name in told.sizes for text in ("tokens/ step", "paper's weights", "characters/ step"))
    return Section(title, ("s_q", *shown), tuple(rows), notes)


def replayed(study: Study) -> str:
    """How many answers were replayed."""
    return f"Replayed: {sum(study.answers.values())} greedy answers of the target, {sum(study.tokens.values())} tokens."
