"""Configure the reproduction of a paper, and limit its time."""

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
_MIN_SECONDS = 1e-3  # smallest limit, as a limit of 0 means none
_ROUNDED = ("bfloat16", "float16")  # in these, greedy answers depend on the order of sums


@dataclass(frozen=True, slots=True)
class PaperPrompts(PromptOptions):
    """Half of the built-in prompts.

    Tables that compare tasks use the first `limit` prompts of every category instead.
    """

    limit: int = 12
    every: int = 2


@dataclass(frozen=True, slots=True)
class PaperConfig:
    """Configuration of a paper's measurement: greedy, with one prompt at a time.

    The paper defines the methods and their settings. A paper's own configuration is derived from
    this class and adds further options.

    Attributes:
        models: The models.
        selection: The prompts.
        max_new_tokens: Maximum tokens of an answer; at least 1.
        seed: Random seed of methods that draw tokens.
        ignore_eos: Continue after an end-of-sequence token.
        cost_scale: Size "WIDTHxLAYERS" to enlarge the target to, for the tables of speed-ups only.
            Other figures do not depend on the cost. Default: not enlarged.
        draft_cost_scale: Size "WIDTHxLAYERS" to enlarge the draft model to, for the tables of
            speed-ups. Default: not enlarged.
        repeats: Passes over all prompts; at least 1.
        warmup: Untimed answers per method before the run; at least 0.
        max_seconds: Approximate maximum seconds of the measurement, which uses fewer prompts if
            needed; at least 0; 0 sets no limit.

    Raises:
        ConfigError: A value is out of range.
    """

    paper: ClassVar[str]  # name in the registry

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
        """Return the benchmark of these drafters and transformers, with `changes`.

        In 16-bit data types, transformers is omitted, because its sums round differently. Answers
        are compared with plain decoding instead.
        """
        known = flat(BenchConfig())
        own = {name: value for name, value in flat(self).items() if name in known}
        baselines = () if self.models.dtype in _ROUNDED else (TRANSFORMERS,)
        return changed(
            BenchConfig(),
            **{**own, "drafters": tuple(drafters), "baselines": baselines, **changes},
        )

    def command(self) -> str:
        """Return the `paceline paper` command line for this run, without default options."""
        values = flat(self)
        model = values.pop("model")
        words = command_words(values, flat(type(self)()))
        return shlex.join(["paceline", "paper", self.paper, model, *words])


class TimeLimit:
    """A time limit in seconds, starting now; 0 sets no limit."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._start = seconds, time.perf_counter()

    def left(self, share: float = 1.0) -> float:
        """Return the time left in a share of the limit, in seconds; 0 means no limit.

        After the limit, the result is tiny but positive.
        """
        return max(_MIN_SECONDS, self._seconds * share - self._used) if self._seconds else 0.0

    def within(
        self, items: Iterable[T], title: str = "", progress: bool = False, share: float = 1.0
    ) -> Iterator[T]:
        """Yield items until this share of the time is used up, but at least the first.

        Args:
            items: The items.
            title: Title of the progress bar.
            progress: Show a progress bar on standard error.
            share: Share of the limit.
        """
        with progress_bar(shown=progress) as bar:
            for item in bar.track(items, description=title):
                yield item
                if 0 < self._seconds * share < self._used:
                    return

    @property
    def _used(self) -> float:
        return time.perf_counter() - self._start
