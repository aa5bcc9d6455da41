"""What a bench run does: a frozen dataclass, checked when it is made, and the command line that
repeats it.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import Any

from paceline.core.request import SamplingParams
from paceline.drafters import entry
from paceline.errors import ConfigError, did_you_mean
from paceline.util.config import parse_spec, require_range
from paceline.util.options import ModelOptions, PromptOptions, flat, refuse_per_request

PLAIN = "transformers"
LOOKUP = "transformers:prompt_lookup"
ASSISTANT = "transformers:assistant"
CONTINUOUS = "transformers:generate_batch"
_LOOKUP_TOKENS = 10
_REPEATED = {"drafters": "--drafter", "baselines": "--baseline", "prompts": "--prompts"}


@dataclass(frozen=True, slots=True)
class CostScale:
    """Sizes to enlarge to: the residual stream's width and the number of layers."""

    width: int
    layers: int

    @staticmethod
    def parse(spec: str) -> CostScale:
        """Read "WIDTHxLAYERS", for example "1024x12".

        Raises:
            ConfigError: another form.
        """
        match = re.fullmatch(r"(\d+)x(\d+)", spec.strip().lower())
        if match is None:
            raise ConfigError(
                f"cost scale {spec!r} is not WIDTHxLAYERS; write for example '1024x12'."
            )
        return CostScale(int(match[1]), int(match[2]))

    def __str__(self) -> str:
        return f"{self.width}x{self.layers}"


@dataclass(frozen=True, slots=True)
class BenchConfig:
    """One bench run.

    Attributes:
        models: the models; "demo" brings its draft along.
        drafters: specs as in `LLM(drafter=...)`, each a method of its own.
        baselines: out of "transformers" (`model.generate`), "transformers:prompt_lookup[=TOKENS]"
            and "transformers:assistant" (the draft model as assistant, at its default settings);
            not by default "transformers:generate_batch" (its continuous batching).
        selection: the prompts, see `load_prompts`.
        sampling: how every prompt is answered; stop strings are not among what methods are compared
            on.
        batch: prompts answered together.
        max_nodes: most draft nodes verified per prompt and step.
        cost_scale: "WIDTHxLAYERS" to enlarge the target to, function preserved, for its cost.
        draft_cost_scale: likewise for the draft model.
        repeats: passes over all prompts, each with fresh drafters.
        warmup: untimed short answers per method beforehand.
        max_seconds: end after the prompt during which this time is up, all methods having answered
            it; 0 = never.
        lookahead_parallel: ranks that share the draft trees of the drafters with a window; 0 = one
            process. The other methods run on every rank as they are. Times are those of rank 0, fed
            tokens those of the busiest rank.

    Raises:
        ConfigError: an unknown name or a value out of range.
    """

    models: ModelOptions = ModelOptions()
    drafters: tuple[str, ...] = ("none", "prompt_lookup")
    baselines: tuple[str, ...] = (PLAIN,)
    selection: PromptOptions = PromptOptions()
    sampling: SamplingParams = SamplingParams()
    batch: int = 1
    max_nodes: int = 256
    cost_scale: str | None = None
    draft_cost_scale: str | None = None
    repeats: int = 1
    warmup: int = 1
    max_seconds: float = 0.0
    lookahead_parallel: int = 0

    def __post_init__(self) -> None:
        for name in ("drafters", "baselines"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        for name, low in (
            ("batch", 1),
            ("max_nodes", 0),
            ("repeats", 1),
            ("warmup", 0),
            ("max_seconds", 0),
            ("lookahead_parallel", 0),
        ):
            require_range("bench", name, getattr(self, name), low)
        require_range("bench", "max_new_tokens", self.sampling.max_new_tokens, 1)
        refuse_per_request("bench", self.sampling)
        if self.sampling.stop:
            raise ConfigError(
                f"bench: stop: got {self.sampling.stop!r}; expected no stop strings. Leave them"
                " out."
            )
        for name in ("presence_penalty", "frequency_penalty"):
            if getattr(self.sampling, name) and self.baselines:
                raise ConfigError(
                    f"bench: {name}: got {getattr(self.sampling, name)} with"
                    f" {self.baselines[0]!r}, which has none; expected 0."
                    " Leave it out, or the baselines."
                )
        for spec in self.drafters:
            entry(parse_spec(spec)[0])
        for baseline in self.baselines:
            lookup_tokens(baseline)
        names = [*self.baselines, *self.drafters]
        for name in names:
            if names.count(name) > 1:
                raise ConfigError(f"bench: method {name!r} is given twice; keep one.")
        if not names:
            raise ConfigError(
                "bench: there is nothing to run; give at least one drafter or baseline."
            )
        for scale in (self.cost_scale, self.draft_cost_scale):
            if scale is not None:
                CostScale.parse(scale)

    def needs_draft(self) -> list[str]:
        """Return the methods that need a draft model (transformers' assistant runs with one
        prompt at a time only).
        """
        drafters = [spec for spec in self.drafters if entry(parse_spec(spec)[0]).needs_draft_model]
        return drafters + [name for name in self.baselines if name == ASSISTANT and self.batch == 1]

    def with_draft(self) -> list[str]:
        """Return the drafters that are built with the draft model: those that need one, and
        where it is named, that take one.
        """
        named = self.models.draft_model is not None
        found = {spec: entry(parse_spec(spec)[0]) for spec in self.drafters}
        return [
            spec
            for spec, one in found.items()
            if one.needs_draft_model or (named and one.takes_draft_model)
        ]

    def command(self) -> str:
        """Return the `paceline bench` command line of this run; options at their defaults are
        left out, methods never.
        """
        words = ["paceline", "bench"]
        if self.lookahead_parallel:
            start = ["torchrun", "--nproc-per-node", str(self.lookahead_parallel), "-m"]
            words = [*start, *words, "--lookahead-parallel"]
        kept = {name: value for name, value in flat(self).items() if name != "lookahead_parallel"}
        return shlex.join(
            words
            + command_words(kept, flat(BenchConfig()), always=("model", "drafters", "baselines"))
        )


def command_words(
    values: dict[str, Any], defaults: dict[str, Any], always: tuple[str, ...] = ()
) -> list[str]:
    """Return the command-line words for values that differ from their defaults, and for those
    named in `always`.
    """
    named = [name for name in values if name in always or values[name] != defaults[name]]
    return [word for name in named for word in option_words(name, values[name])]


def option_words(name: str, value: Any) -> list[str]:
    """Return the command-line words that set a field of a configuration: the flag alone for
    True, once per entry of a tuple.
    """
    flag = _REPEATED.get(name, "--" + name.replace("_", "-"))
    if value is True:
        return [flag]
    values = value if isinstance(value, tuple) else (value,)
    if name == "baselines":
        values = values or ("none",)  # left out, the option would mean all of them
    return [word for one in values for word in (flag, str(one))]


def lookup_tokens(baseline: str) -> int:
    """Return `prompt_lookup_num_tokens` of a baseline name; 0 for those that are not prompt lookup.

    Raises:
        ConfigError: no such baseline, or a length that is no positive integer.
    """
    if baseline in (PLAIN, ASSISTANT, CONTINUOUS):
        return 0
    name, equals, length = baseline.partition("=")
    if name != LOOKUP:
        raise ConfigError(
            "there is no baseline"
            f" {baseline!r}.{did_you_mean(baseline, (PLAIN, LOOKUP, ASSISTANT, CONTINUOUS))}"
        )
    if not equals:
        return _LOOKUP_TOKENS
    if not length.isdecimal() or int(length) < 1:
        raise ConfigError(
            f"baseline {baseline!r}: the length is {length!r}; write a positive integer, for"
            f" example {LOOKUP}=10."
        )
    return int(length)
