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
    """The prompts of a paper's measurement; by default, half of the built-in prompts.

    Tables that compare tasks use the first `limit` prompts of every category.
    """

    limit: int = 12
    every: int = 2


@dataclass(frozen=True, slots=True)
class PaperConfig:
    """Configuration of a paper's measurement: greedy decoding, one prompt at a time.

    Each paper defines its methods and their settings. A subclass adds the options of one paper.

    Attributes:
        models: Models to measure.
        selection: Prompts to answer.
        max_new_tokens: Maximum number of tokens per answer; at least 1.
        seed: Random seed for methods that sample tokens.
        ignore_eos: Continue an answer after an end-of-sequence token.
        cost_scale: Enlarge the target to the size "WIDTHxLAYERS" in measurements of speed. Other
            results do not depend on the size. Default: not enlarged.
        draft_cost_scale: Enlarge the draft model to the size "WIDTHxLAYERS" in measurements of
            speed. Default: not enlarged.
        repeats: Number of passes over all prompts; at least 1.
        warmup: Number of untimed answers per method before the run; at least 0.
        max_seconds: Approximate time limit in seconds; at least 0. If time runs short, fewer
            prompts are used. With 0, there is no limit.

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
        """Return a benchmark of these drafters and transformers, changed by `changes`.

        In 16-bit data types, transformers rounds sums differently and is therefore left out.
        Answers are then compared with plain decoding.
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
    """A time limit in seconds that starts when the object is created; 0 sets no limit."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._start = seconds, time.perf_counter()

    def left(self, share: float = 1.0) -> float:
        """Return the seconds left of a share of the limit; 0 means that there is no limit.

        Once the time is used up, the result is tiny but positive.
        """
        return max(_MIN_SECONDS, self._seconds * share - self._used) if self._seconds else 0.0

    def within(
        self, items: Iterable[T], title: str = "", progress: bool = False, share: float = 1.0
    ) -> Iterator[T]:
        """Yield the first item, and more items until a share of the time is used up.

        Args:
            items: Items to yield.
            title: Title of the progress bar.
            progress: Whether to show a progress bar on standard error.
            share: Share of the time limit that may be used.
        """
        with progress_bar(shown=progress) as bar:
            for item in bar.track(items, description=title):
                yield item
                if 0 < self._seconds * share < self._used:
                    return

    @property
    def _used(self) -> float:
        return time.perf_counter() - self._start
