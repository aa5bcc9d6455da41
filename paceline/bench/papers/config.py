"""What papers are measured on, and for how long."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, TypeVar

from paceline.bench.settings import PLAIN as TRANSFORMERS
from paceline.bench.settings import BenchConfig, command_words
from paceline.report.progress import progress_bar
from paceline.util.options import ModelOptions, PromptOptions, changed, flat

T = TypeVar("T")
_MOMENT = 1e-3  # seconds: a limit of 0 would mean none


@dataclass(frozen=True, slots=True)
class PaperPrompts(PromptOptions):
    """Half of the embedded prompts. Tables that compare tasks take the first `limit` prompts of
    every category instead.
    """

    limit: int = 12
    every: int = 2


@dataclass(frozen=True, slots=True)
class PaperConfig:
    """What a paper is measured on; its methods and settings are the paper's own. Always greedy, one
    prompt at a time.

    A paper's own configuration is derived from this one and adds what only that paper has a use
    for.

    Attributes:
        models: the models.
        selection: the prompts.
        max_new_tokens: most tokens of an answer.
        seed: of what a method draws.
        ignore_eos: go on after an end-of-sequence token.
        cost_scale: "WIDTHxLAYERS" to enlarge the target to, for tables of speed-ups only; the rest
            does not depend on cost.
        draft_cost_scale: likewise for the draft model.
        repeats: passes over all prompts.
        warmup: untimed answers per method beforehand.
        max_seconds: the whole takes about this long, with fewer prompts where needed; 0 = as long
            as it takes.

    Raises:
        ConfigError: a value out of range.
    """

    paper: ClassVar[str]  # its name in the registry

    models: ModelOptions = ModelOptions()
    selection: PaperPrompts = PaperPrompts()
    max_new_tokens: int = 64
    seed: int = 0
    ignore_eos: bool = False
    cost_scale: str | None = None
    draft_cost_scale: str | None = None
    repeats: int = 1
    warmup: int = 1
    max_seconds: float = 480.0

    def __post_init__(self) -> None:
        for field in fields(self):
            if isinstance(field.default, tuple):
                object.__setattr__(self, field.name, tuple(getattr(self, field.name)))
        self.run_of(("none",))

    def run_of(self, drafters: Sequence[str], **changes: Any) -> BenchConfig:
        """Return the bench run of these drafters beside transformers, `changes` aside with this
        configuration.
        """
        known = flat(BenchConfig())
        mine = {name: value for name, value in flat(self).items() if name in known}
        return changed(
            BenchConfig(),
            **{**mine, "drafters": tuple(drafters), "baselines": (TRANSFORMERS,), **changes},
        )

    def command(self) -> str:
        """Return the `paceline paper` command line of this run; options at their defaults are
        left out.
        """
        words = command_words(flat(self), flat(type(self)()), always=("model",))
        return shlex.join(["paceline", "paper", self.paper, *words])


class TimeLimit:
    """Seconds that may be used from now on; 0 = no limit."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._start = seconds, time.perf_counter()

    def left(self, share: float = 1.0) -> float:
        """Return the seconds of this share of the limit that are left, next to nothing once they
        are used up; 0 = no limit.
        """
        return max(_MOMENT, self._seconds * share - self._used) if self._seconds else 0.0

    def within(
        self, items: Iterable[T], title: str = "", progress: bool = False, share: float = 1.0
    ) -> Iterator[T]:
        """Yield the items up to the one during which this share of the time is up, the first one in
        any case.

        Args:
            progress: show a bar with the title on standard error.
        """
        with progress_bar(shown=progress) as bar:
            for item in bar.track(items, description=title):
                yield item
                if 0 < self._seconds * share < self._used:
                    return

    @property
    def _used(self) -> float:
        return time.perf_counter() - self._start
