"""Papers whose tables and figures `paceline bench --paper NAME` measures again, on any model.

A paper is one module with `run(config, **loaded)`, which times it through `run_bench`, `read(values)`, which makes a result of
what its JSON file holds, and one line in `PAPERS`.
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from paceline.bench.environment import Environment
from paceline.bench.report import setting_parts
from paceline.bench.result import BenchResult, Divergence, Figures
from paceline.bench.settings import BenchConfig, option_words
from paceline.errors import ConfigError, did_you_mean

HEADED = "specdec_pp"  # the paper whose method has a trained head
RETRIEVAL = "sssd"  # and the one whose method searches a datastore
PAPERS = {  # name -> its module in this package
    "lookahead": "paper_lookahead",
    "ouroboros": "paper_ouroboros",
    HEADED: "paper_specdec",
    RETRIEVAL: "paper_sssd",
}
OF_ONE = {"head": HEADED, "recording": HEADED, "datastore": RETRIEVAL}  # options that one paper only has a use for
CONVENTION = (
    "S, the step compression, is tokens per forward: (new tokens - 1) / (target forwards - prefill forwards), so plain decoding"
    " is exactly 1."
)


@dataclass(frozen=True, slots=True)
class PaperConfig:
    """What a paper is measured on; its methods and settings are the paper's own. Always greedy, one prompt at a time.

    Attributes:
        paper: out of `PAPERS`.
        limit, every: which prompts, as in `BenchConfig`; the defaults are half of the embedded ones. Tables that compare
            tasks take the first `limit` prompts of every category instead.
        cost_scale, draft_cost_scale: for the tables of speed-ups only, as the rest does not depend on cost.
        max_seconds: the whole takes about this long, with fewer prompts where needed; 0 = as long as it takes.
        head: folders of acceptance heads for the draft model, for "specdec_pp" only; the first one is compared with everything.
            None = the one that is shipped for the embedded draft model.
        recording: folders that `paceline head record` has filled, likewise: heads are trained on them and compared.
        datastore: folder of a store of the target's tokenizer, for "sssd" only. None = the one that is shipped for the embedded
            target; for others the request alone is searched.

    The others are as in `BenchConfig`.

    Raises:
        ConfigError: an unknown paper, the close match is named, or a value out of range.
    """

    paper: str
    model: str = "demo"
    draft_model: str | None = None
    prompts: tuple[str, ...] = ()
    limit: int = 12
    every: int = 2
    max_new_tokens: int = 64
    seed: int = 0
    ignore_eos: bool = False
    dtype: str = "auto"
    device: str = "auto"
    threads: int | None = None
    cost_scale: str | None = None
    draft_cost_scale: str | None = None
    repeats: int = 1
    warmup: int = 1
    max_seconds: float = 480.0
    head: tuple[str, ...] = ()
    recording: tuple[str, ...] = ()
    datastore: str | None = None

    def __post_init__(self) -> None:
        for name in ("prompts", "head", "recording"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        if self.paper not in PAPERS:
            raise ConfigError(f"there is no paper {self.paper!r}.{did_you_mean(self.paper, PAPERS)}")
        for name, paper in OF_ONE.items():
            if getattr(self, name) and self.paper != paper:
                raise ConfigError(f"paper {self.paper}: --{name} came; only --paper {paper} has a use for it. Leave it out.")
        self.run_of(("none",))

    def run_of(self, drafters: Seq[str], **changes: Any) -> BenchConfig:
        """The bench run of these drafters beside transformers, `changes` aside with this configuration."""
        names = [field.name for field in dataclasses.fields(self)[1:] if field.name not in OF_ONE]
        mine = {name: getattr(self, name) for name in names}
        return BenchConfig(**{**mine, "drafters": tuple(drafters), "baselines": ("transformers",), **changes})

    def command(self) -> str:
        """The `paceline bench --paper` command line of this run; options at their defaults are left out."""
        words = ["paceline", "bench", "--paper", self.paper, "--model", self.model]
        for field in dataclasses.fields(self)[2:]:
            value = getattr(self, field.name)
            words += [] if value == field.default else option_words(field.name, value)
        return shlex.join(words)


@dataclass(frozen=True, slots=True)
class Part:
    """What is kept of one `run_bench`: what ran where, every method's figures, and the answers that were not equal."""

    label: str
    setting: tuple[str, ...]
    environment: Environment
    complete: bool
    reference: str | None
    figures: tuple[Figures, ...]
    divergences: tuple[Divergence, ...]

    @staticmethod
    def of(label: str, result: BenchResult) -> Part:
        """From a finished, or interrupted, run."""
        return Part(
            label, tuple(setting_parts(result)), result.environment, result.complete, result.reference,
            tuple(result.figures()), result.divergences,
        )  # fmt: skip

    @staticmethod
    def read(values: dict[str, Any]) -> Part:
        """From its JSON form."""
        return Part(
            values["label"], tuple(values["setting"]), Environment(**values["environment"]), values["complete"],
            values["reference"], tuple(Figures(**one) for one in values["figures"]),
            tuple(Divergence(**one) for one in values["divergences"]),
        )  # fmt: skip

    def method(self, name: str | None) -> Figures | None:
        """The figures of a method; None if it did not run."""
        return next((one for one in self.figures if one.method == name), None)

    def equality(self) -> str:
        """How many answers were compared, and what is known of those that differ."""
        equal, compared = sum(one.equal for one in self.figures), sum(one.compared for one in self.figures)
        said = f"{equal} of {compared} answers have exactly the tokens of {self.reference or 'the reference (none ran)'}"
        if not self.divergences:
            return f"{said}."
        gap = max(one.top_gap for one in self.divergences)
        return f"{said}; where the others first differ, the target's two best logits lie at most {gap:.3g} apart."


@dataclass(frozen=True, slots=True)
class Section:
    """A table or figure of a paper, ready to be shown: `rows` hold one text per heading, `notes` stand below."""

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()


class PaperResult(Protocol):
    """A paper measured again: a frozen dataclass whose fields are what was measured."""

    @property
    def config(self) -> PaperConfig:
        """What was asked for."""

    @property
    def title(self) -> str:
        """Of the paper, with authors and year."""

    @property
    def complete(self) -> bool:
        """False if it was interrupted; then something is missing."""

    @property
    def parts(self) -> list[Part]:
        """The runs there were."""

    def sections(self) -> list[Section]:
        """Its tables and figures, the paper's own values beside what was measured."""

    def summary(self) -> dict[str, Any]:
        """The same as plain values, for programs."""

    def draw(self, path: Path) -> None:
        """Its picture, as a PNG file."""


def run_paper(config: PaperConfig, **loaded: Any) -> PaperResult:
    """Measure a paper again. Ctrl-C ends it early and keeps what was measured.

    Args:
        loaded: `target`, `draft`, `tokenizer` and `progress`, as in `run_bench`.
    Raises:
        ConfigError, CapacityError, UnsupportedModelError: something cannot be run.
        KeyboardInterrupt: it was interrupted before anything had been measured.
    """
    return paper_module(config.paper).run(config, **loaded)  # type: ignore[no-any-return]


def paper_module(name: str) -> Any:
    """The module of a paper."""
    return import_module(f"paceline.bench.{PAPERS[name]}")
