"""Build the SSSD paper's results on accepted tokens: figures 4 and 5, section 4.2."""

from __future__ import annotations

from paceline.errors import install_command
from paceline.report.tables import Cell, Column, Table
from papers.part import PICTURE
from papers.sssd.answers import GREEDY, temperature_name
from papers.sssd.paper_settings import (
    PAPER_TEMPERATURES,
    RETRIEVAL_SIZES,
    TEMPERATURES,
    TOP_K,
    TOP_P,
    WARM_TOKENS,
)
from papers.sssd.replays import PIA, REST
from papers.sssd.result import (
    BOTH,
    NOTHING,
    REQUEST,
    STORE,
    WINDOW,
    SssdResult,
    Study,
    published,
)

RIVALS = (published(BOTH), REST, PIA)  # compared with sssd in figures 4b and c
PER_STEP = (
    "The number of tokens per step includes the bonus token, so it is 1 with plain decoding."
    " s_q includes the root of the tree."
)


def figure_4a(result: SssdResult) -> Table:
    """Return figure 4a: accepted tokens by source of the drafts."""
    study = result.replays or NOTHING
    names = (BOTH, REQUEST, *map(published, (BOTH, REQUEST, STORE)))
    rows = []
    for size in study.sizes:
        alone = [study.rate(published(source), size) for source in (REQUEST, STORE)]
        together = (
            None if None in alone else 1 + sum(rate - 1 for rate in alone if rate is not None)
        )
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
        "request: the drafter searches only the prompt and the output. datastore: the drafter sees"
        " only the last 4 tokens of the request, and searches for them in the datastore"
        f" ({result.store_tokens:,} tokens). window: the drafter sees the same 4 tokens and has no"
        " datastore.",
        "Columns labelled \"paper's\" use the paper's fixed weights; the others use"
        " paceline's fitted weights.",
        "sum: the tokens accepted with the request as the only source, plus those accepted with the"
        " datastore as the only source, plus the bonus token. In the paper, a drafter with both"
        " sources generates nearly as many tokens per step as this sum.",
        PICTURE,
    )
    shown = [Column("s_q"), *names, "sum, paper's", "window, paper's"]
    title = (
        "Figure 4a: Each row shows the tokens per step with s_q query tokens, by source of the"
        " drafts"
    )
    return Table.of(title, shown, rows, notes)


def figure_4bc(result: SssdResult) -> Table:
    """Return figures 4b and 4c: sssd, REST and PIA, with their retrieval times."""
    study = result.replays or NOTHING
    sizes, sets = study.sizes[1:], list(study.answers) if len(study.answers) > 1 else []
    rows = []
    for name in (*sets, None):
        for method in rivals(study):
            results = [study.result(method, size, name) for size in RETRIEVAL_SIZES]
            rates = (study.rate(method, size, name) for size in sizes)
            rows.append(
                (
                    f"{name or 'all'}: {method}",
                    *rates,
                    *(result and result.microseconds_per_step for result in results),
                )
            )
    notes = (
        f"{PER_STEP} {_replayed(study)}",
        "us: microseconds that the drafter takes per request and step, at batch 1, in one pass on a"
        " machine with other jobs. The rows named both (or request, without a datastore) are sssd."
        " rest reads the same datastore. rest and pia are implemented as in their papers, pia in"
        f" plain Python. pia first learns up to {WARM_TOKENS:,} tokens of the datastore (in the"
        " paper: 10,000 answers), and then every replayed answer.",
        PICTURE,
    )
    times = (Column(f"us s_q = {size}", ".0f") for size in RETRIEVAL_SIZES)
    title = (
        "Figures 4b and 4c: Each row shows the tokens per step and the retrieval time (us) of sssd,"
        " REST or PIA, with s_q query tokens"
    )
    return Table.of(
        title, ["prompts: method", *(f"s_q = {size}" for size in sizes), *times], rows, notes
    )


def rivals(study: Study) -> list[str]:
    """Return the methods of figures 4b and 4c that were replayed."""
    return [name for name in (study.fusions[0], *RIVALS) if name in study.methods]


def section_4_2(result: SssdResult) -> Table:
    """Return section 4.2: accepted tokens by sampling temperature."""
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
        f"The answers were sampled with top-k {TOP_K} and top-p {TOP_P}, as in the paper. A draft"
        " token is accepted if it equals the token sampled from the target. change: relative change"
        " in accepted tokens per step, compared with greedy decoding of the same prompts.",
        "Changing the temperature also changes the generated text, and therefore the share of the"
        " text that repeats the request or the datastore.",
    )
    shown = [
        heading
        for name, size in methods
        for heading in (f"{name}, s_q = {size}", Column(f"change, s_q = {size}", "+.1%"))
    ]
    headings = ["", Column("answers"), Column("tokens"), *shown, Column("paper", "+.1%")]
    title = "Section 4.2: Each row shows the tokens per step with s_q query tokens at temperature T"
    return Table.of(title, headings, rows, notes)


def change_of_accepted(study: Study, method: str, size: int, name: str) -> float | None:
    """Return the change in accepted tokens per step, relative to greedy answers."""
    counts, greedy = study.result(method, size, name), study.result(method, size, GREEDY)
    if counts is None or greedy is None or not greedy.accepted_per_step:
        return None
    return counts.accepted_per_step / greedy.accepted_per_step - 1


def figure_5(result: SssdResult) -> Table:
    """Return figure 5: tokens per step with two vocabularies."""
    vocabularies, rows = result.vocabularies, []
    title, note = (
        "Figure 5: Each row shows tokens and characters per step with s_q query tokens, by"
        " vocabulary",
        "The paper uses the vocabularies of Llama-2 (32,000 tokens) and Llama-3 (128,256 tokens)."
        " For each vocabulary, the paper uses answers from the model that has this vocabulary."
        f" {PICTURE}",
    )
    if vocabularies is None:
        return Table.of(title, ["s_q"], (), (note,))
    study = vocabularies.study
    for size in study.sizes:
        row: list[Cell] = [size]
        for name in vocabularies.sizes:
            row += [study.rate(method, size, name) for method in study.fusions]
            row.append(vocabularies.characters_per_step(study.fusions[0], size, name))
        rows.append(row)
    known = "; ".join(
        f"{name}: the vocabulary has {size:,} tokens, with"
        f" {vocabularies.characters_per_token(name):.2f} characters per token on average, and the"
        f" datastore has {vocabularies.store_tokens[name]:,} tokens"
        for name, size in vocabularies.sizes.items()
    )
    notes = (
        f"The same answers and the same datastore are encoded with each vocabulary. {known}.",
        *(
            []
            if len(vocabularies.sizes) > 1
            else [f"To add the vocabulary of mistral-common, run {install_command('replay')}."]
        ),
        note,
    )
    kinds = {"tokens/ step": ".2f", "paper's weights": ".2f", "characters/ step": ".1f"}
    shown = [
        Column(f"{text}, {name}", form)
        for name in vocabularies.sizes
        for text, form in kinds.items()
    ]
    return Table.of(title, [Column("s_q"), *shown], rows, notes)


def _replayed(study: Study) -> str:
    return (
        f"The replay covers {sum(study.answers.values())} greedy answers from the target, with"
        f" {sum(study.tokens.values())} tokens in total."
    )
