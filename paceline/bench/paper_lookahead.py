"""Lookahead Decoding (Fu et al., ICML 2024): figure 4, table 3 and table 6."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from paceline import demo
from paceline.bench.paper import CONVENTION, PaperConfig, Part, Section
from paceline.bench.paper_lines import PLAIN, SPEEDUP, Line, figures_of, seconds_left, summary_row, table
from paceline.bench.run import run_bench
from paceline.bench.scaling_law import Point, ScalingLaw, fit
from paceline.config import build_options, parse_spec
from paceline.drafters.lookahead import LookaheadOptions

NGRAMS = (3, 5, 7, 9)
WINDOWS = (1, 2, 4, 8, 15, 30)
PAPER_LAW = ScalingLaw(alpha=0.425, f=3.106)  # the caption of figure 4
_TABLES_SHARE = 0.35  # of the time; what they leave is the figure's
_LEAST_NODES = 256  # what an `LLM` verifies by default


def spec_of(ngram: int, window: int, guesses: int, prompt_pool: bool = False, published: bool = False) -> str:
    """The drafter of a setting (N, W, G) of the paper; `published`: with exactly the steps of the paper's public code."""
    spec = f"lookahead:window={window},ngram={ngram},guesses={guesses},prompt_pool={str(prompt_pool).lower()}"
    return f"{spec},compat=true" if published else spec


TABLE_3 = (  # LLaMA-2-7B-chat on MT-Bench, one A100, FlashAttention: speed-up, S
    Line("1 autoregressive", PLAIN, (1.00, 1.00)),
    Line("2 prompt lookup, 10 tokens", "prompt_lookup:length=10", (1.44, 1.55)),
    Line("3 (10, 1, 3) + prompt", spec_of(10, 1, 3, True), (1.36, 1.45)),
    Line("4 (5, 1, 10) + prompt", spec_of(5, 1, 10, True), (1.36, 1.51)),
    Line("5 (5, 1, 30)", spec_of(5, 1, 30), (1.04, 1.12)),
    Line("6 (5, 1, 30) + prompt", spec_of(5, 1, 30, True), (1.46, 1.59)),
    Line("7 (5, 30, 1)", spec_of(5, 30, 1), (1.61, 1.79)),
    Line("8 (5, 15, 15)", spec_of(5, 15, 15), (1.78, 1.96)),
    Line("9 (5, 15, 15) + prompt", spec_of(5, 15, 15, True), (1.88, 2.05)),
)
MEDUSA = "Medusa"
DRAFT = "draft_model:length=4"
TABLE_6 = (  # Vicuna-7B, one A100: speed-up on MT-Bench and on HumanEval
    Line("autoregressive", PLAIN, (1.0, 1.0)),
    Line("lookahead (5, 15, 15)", spec_of(5, 15, 15), (1.7, 2.1)),
    Line("lookahead, default here", "lookahead"),
    Line(MEDUSA, None, (2.3, 2.5)),
    Line("draft model, 4 tokens", DRAFT, (0.7, 0.8)),
    Line("Jacobi", "jacobi", (0.4, 0.7)),
    Line("Gauss-Seidel-Jacobi, block 5", "jacobi:block=5", (1.1, 1.1)),
    Line("Gauss-Seidel-Jacobi, block 16", "jacobi:block=16", (1.1, 1.1)),
)
_NO_MEDUSA = "Medusa needs trained heads; it is not part of paceline."
_NO_DRAFT = "The draft model's row is empty: none was given (--draft-model)."
_COLUMNS = ("speed-up", "S", "fed/ step", "equal")


@dataclass(frozen=True, slots=True)
class LookaheadResult:
    """Figure 4 and the two tables as measured; a part is None if the run was interrupted before it."""

    config: PaperConfig
    tables: Part | None
    figure: Part | None

    @property
    def parts(self) -> list[Part]:
        """The runs there were."""
        return [part for part in (self.tables, self.figure) if part is not None]

    @property
    def title(self) -> str:
        """Of the paper."""
        return "Lookahead Decoding (Fu et al., ICML 2024)"

    @property
    def complete(self) -> bool:
        """Whether all of it was measured."""
        return len(self.parts) == 2 and all(part.complete for part in self.parts)

    def points(self, published: bool) -> list[Point]:
        """The measured points of figure 4, with the steps of the paper's public code or those of this implementation."""
        found = []
        for ngram, window in product(NGRAMS, WINDOWS):
            figures = figures_of(self.figure, spec_of(ngram, window, window, published=published))
            if figures and figures.tokens_per_forward:
                found.append(Point(ngram, window, figures.tokens_per_forward))
        return found

    def sections(self) -> list[Section]:
        """Figure 4 twice, table 3, table 6."""
        return [_figure_4(self, published=True), _figure_4(self, published=False), _table_3(self), _table_6(self)]

    def summary(self) -> dict[str, Any]:
        """Points, fits and rows as plain values."""
        return {
            "figure_4": {
                "published": _fitted(self.points(published=True)),
                "paceline": _fitted(self.points(published=False)),
                "paper": {"fit": dataclasses.asdict(PAPER_LAW)},
            },
            "table_3": [summary_row(self.tables, line, ("speedup", "compression")) for line in TABLE_3],
            "table_6": [summary_row(self.tables, line, ("speedup_mt_bench", "speedup_humaneval")) for line in TABLE_6],
        }

    def draw(self, path: Path) -> None:
        """Measured and expected S, and the tables as bars."""
        from paceline.bench.paper_lookahead_plot import draw_lookahead

        draw_lookahead(self, path)


def run(config: PaperConfig, **loaded: Any) -> LookaheadResult:
    """Time the tables' methods, then the figure's settings; see `paceline.bench.paper.run_paper`."""
    start = time.perf_counter()
    has_draft = config.draft_model is not None or config.model == demo.NAME or loaded.get("draft") is not None
    methods = dict.fromkeys(line.method for line in (*TABLE_3, *TABLE_6) if line.method is not None)
    names = [name for name in methods if has_draft or name != DRAFT]
    tables = figure = None
    try:
        tables = _part("tables", config, names, loaded, max_seconds=seconds_left(config, start, _TABLES_SHARE))
        if tables.complete:
            settings = product((True, False), NGRAMS, WINDOWS)
            names = [spec_of(ngram, window, window, published=published) for published, ngram, window in settings]
            left = seconds_left(config, start)
            figure = _part("figure", config, [PLAIN, *names], loaded, max_seconds=left, cost_scale=None, draft_cost_scale=None)
    except KeyboardInterrupt:  # while a model was being loaded
        if tables is None:
            raise
    return LookaheadResult(config, tables, figure)


def read(config: PaperConfig, values: dict[str, Any]) -> LookaheadResult:
    """A result from the fields in its JSON file."""
    return LookaheadResult(config, *(values[name] and Part.read(values[name]) for name in ("tables", "figure")))


def _part(label: str, config: PaperConfig, names: list[str], loaded: dict[str, Any], **changes: Any) -> Part:
    nodes = max(_LEAST_NODES, config.max_new_tokens, *(spec_nodes(name) for name in names))
    return Part.of(label, run_bench(config.run_of(names, max_nodes=nodes, **changes), **loaded))


def spec_nodes(spec: str) -> int:
    """Nodes of the largest tree a setting of the paper proposes; 0 for other drafters."""
    name, options = parse_spec(spec)
    return build_options(LookaheadOptions, options, spec).most_nodes if name == "lookahead" else 0


def _fitted(points: list[Point]) -> dict[str, Any]:
    law = fit(points)
    fitted = law and {**dataclasses.asdict(law), "residual_rms": law.residual(points)}
    return {"points": [dataclasses.asdict(point) for point in points], "fit": fitted}


def _figure_4(result: LookaheadResult, published: bool) -> Section:
    measured = result.points(published)
    law, points = fit(measured), {(point.ngram, point.window): point.compression for point in measured}

    def cell(ngram: int, window: int) -> str:
        fitted = "" if law is None else f" ({law.compression(ngram, window):.2f})"
        return "-" if (ngram, window) not in points else f"{points[ngram, window]:.2f}{fitted}"

    steps = "the steps of the paper's public code (compat=true)" if published else "the steps of this implementation"
    rows = tuple((f"N = {ngram}", *(cell(ngram, window) for window in WINDOWS)) for ngram in NGRAMS)
    notes = [_fit_note(measured, law)]
    if published and measured:
        notes.append(
            f"The paper's own fit, LLaMA-2-7B-chat on MT-Bench: alpha = {PAPER_LAW.alpha}, f = {PAPER_LAW.f}; its curves are"
            f" {PAPER_LAW.residual(measured):.3f} RMS away from these points. The public code keeps at most N - 2 tokens of a"
            " guess, where the formula has N - 1."
        )
    elif not published:
        notes.append("The formula knows neither accepted window tokens nor guesses continued from the pool, which are new here.")
        notes += [result.figure.equality()] if result.figure else []
    title = f"Figure 4: S against W = G, measured (fitted), with {steps}"
    return Section(title, ("", *(f"W = {window}" for window in WINDOWS)), rows, tuple(notes))


def _fit_note(points: list[Point], law: ScalingLaw | None) -> str:
    if law is None:
        return "No fit of equations 5 to 7: nothing, or nothing above S = 1, was measured."
    values = [point.compression for point in points]
    return (
        f"Fit of equations 5 to 7, S = (f - 1 + E) / f: alpha = {law.alpha:.3f}, f = {law.f:.3f}; residual RMS"
        f" {law.residual(points):.3f} over {len(points)} points from {min(values):.2f} to {max(values):.2f}."
        " The prompt is not in the n-gram pool, as in the paper."
    )


def _table_3(result: LookaheadResult) -> Section:
    notes = (
        "The paper's columns: LLaMA-2-7B-chat, MT-Bench, A100, FlashAttention; its S (equation 6) is generated tokens over"
        " decoding steps.",
        SPEEDUP,
        *((result.tables.equality(),) if result.tables else ()),
    )
    title = "Table 3: lookahead and verification branch, (N, W, G)"
    return table(title, ("setting", *_COLUMNS), ("paper's speed-up", "paper's S"), result.tables, TABLE_3, notes)


def _table_6(result: LookaheadResult) -> Section:
    here = figures_of(result.tables, DRAFT) is not None
    notes = (
        "The paper's columns: speed-ups of Vicuna-7B on an A100, draft model TinyLlama-1B.",
        _NO_MEDUSA,
        *(() if here else (_NO_DRAFT,)),
        CONVENTION,
    )
    paper = ("paper's MT-Bench", "paper's HumanEval")
    return table("Table 6: other methods", ("method", *_COLUMNS), paper, result.tables, TABLE_6, notes, ".1f")
