"""Define the settings of a benchmark, and the command line that repeats it."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import Any

from paceline.core.sampling_params import SamplingParams
from paceline.drafters import entry
from paceline.errors import ConfigError, did_you_mean
from paceline.util.config import parse_spec, require_range
from paceline.util.options import ENGINE, ModelOptions, PromptOptions, flat, refuse_per_request

PLAIN = "transformers"
LOOKUP = "transformers:prompt_lookup"
ASSISTANT = "transformers:assistant"
CONTINUOUS = "transformers:generate_batch"
_TRANSFORMERS_ONLY = "not possible for a model in llama.cpp"
ONE_BY_ONE = "not possible in transformers with more than one prompt at a time"
_LOOKUP_TOKENS = 10  # default of `prompt_lookup_num_tokens`
_REPEATED = {"drafters": "--drafter", "baselines": "--baseline", "prompts": "--prompts"}


@dataclass(frozen=True, slots=True)
class CostScale:
    """The size to which a model is enlarged.

    Attributes:
        width: Width of the residual stream.
        layers: Number of layers.
    """

    width: int
    layers: int

    @staticmethod
    def parse(spec: str) -> CostScale:
        """Read "WIDTHxLAYERS", for example "1024x12".

        Raises:
            ConfigError: The text does not have this format.
        """
        match = re.fullmatch(r"(\d+)x(\d+)", spec.strip().lower())
        if match is None:
            raise ConfigError(
                f"cost scale {spec!r} does not have the form WIDTHxLAYERS. Write, for example,"
                " '1024x12'."
            )
        return CostScale(int(match[1]), int(match[2]))

    def __str__(self) -> str:
        return f"{self.width}x{self.layers}"


@dataclass(frozen=True, slots=True)
class BenchConfig:
    """Configuration of a benchmark.

    Attributes:
        models: Models to measure; "demo" includes its draft model.
        drafters: Drafter specs, as in `LLM(drafter=...)`. Each spec is measured as one method.
        baselines: Methods in transformers: "transformers" (`model.generate`),
            "transformers:prompt_lookup[=TOKENS]", "transformers:assistant" (with the draft model
            as assistant, at default settings), and "transformers:generate_batch" (continuous
            batching). Default: "transformers".
        selection: Selection of prompts; see `load_prompts`.
        sampling: Sampling parameters for all prompts. Stop strings are not allowed.
        batch: Number of prompts answered together; at least 1.
        max_nodes: Maximum number of draft nodes verified per prompt and step; at least 0.
        cost_scale: Enlarge the target to the size "WIDTHxLAYERS". The enlarged target computes the
            same function but takes longer. Default: not enlarged.
        draft_cost_scale: Enlarge the draft model to the size "WIDTHxLAYERS". Default: not enlarged.
        repeats: Number of passes over all prompts, each with new drafters; at least 1.
        warmup: Number of short, untimed answers per method before the run; at least 0.
        max_seconds: Time limit of the run in seconds; at least 0. At the limit, the run ends as
            soon as all methods have answered the current prompt. With 0, there is no limit.
        lookahead_parallel: Number of ranks (processes) among which each draft tree that has a
            lookahead window is split; 0 runs one process. Every rank runs all other methods in
            full. The result contains the times of rank 0 and the query tokens of the busiest rank.

    Raises:
        ConfigError: A name is unknown, or a value is out of range.
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
                f"\0bench: stop\0: got {self.sampling.stop!r}; expected no stop strings. Leave them"
                " out."
            )
        for name in ("presence_penalty", "frequency_penalty"):
            if getattr(self.sampling, name) and self.baselines:
                raise ConfigError(
                    f"\0bench: {name}\0: got {getattr(self.sampling, name)} with"
                    f" {self.baselines[0]!r}, which has none; expected 0. Leave it out, or the"
                    " baselines."
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

    def skipped(self) -> dict[str, str]:
        """Return the baselines that cannot run, each with the reason."""
        if self.models.engine != ENGINE:
            return dict.fromkeys(self.baselines, _TRANSFORMERS_ONLY)
        return {
            name: ONE_BY_ONE
            for name in self.baselines
            if name not in (PLAIN, CONTINUOUS) and self.batch > 1
        }

    def needs_draft(self) -> list[str]:
        """Return the methods that need a draft model.

        transformers' assisted generation is included only if prompts are answered one at a time.
        """
        drafters = [spec for spec in self.drafters if entry(parse_spec(spec)[0]).needs_draft_model]
        return drafters + [name for name in self.baselines if name == ASSISTANT and self.batch == 1]

    def with_draft(self) -> list[str]:
        """Return the drafters that use the draft model.

        Drafters that require a draft model are always included. Drafters that merely accept one are
        included if a draft model is named.
        """
        named = self.models.draft_model is not None
        entries = {spec: entry(parse_spec(spec)[0]) for spec in self.drafters}
        return [
            spec
            for spec, drafter in entries.items()
            if drafter.needs_draft_model or (named and drafter.takes_draft_model)
        ]

    def command(self) -> str:
        """Return the `paceline bench` command line for this run, omitting defaults.

        The methods are always included.
        """
        words = ["paceline", "bench", self.models.model]
        if self.lookahead_parallel:
            start = ["torchrun", "--nproc-per-node", str(self.lookahead_parallel), "-m"]
            words = [*start, *words, "--lookahead-parallel"]
        values = flat(self)
        for name in ("model", "lookahead_parallel"):
            del values[name]
        return shlex.join(
            words + command_words(values, flat(BenchConfig()), always=("drafters", "baselines"))
        )


def command_words(
    values: dict[str, Any], defaults: dict[str, Any], always: tuple[str, ...] = ()
) -> list[str]:
    """Return command-line words for the values that differ from their defaults.

    Args:
        values: Values by option name.
        defaults: Default values by option name.
        always: Options to include even if their values are the defaults.
    """
    named = [name for name in values if name in always or values[name] != defaults[name]]
    return [word for name in named for word in option_words(name, values[name])]


def option_words(name: str, value: Any) -> list[str]:
    """Return the command-line words that set one field of a configuration.

    If the value is True, the result is only the option's name. If the value is False, the name
    begins with --no-. If the value is a tuple, the option is repeated for each entry.
    """
    flag = _REPEATED.get(name, "--" + name.replace("_", "-"))
    if isinstance(value, bool):
        return [flag if value else flag.replace("--", "--no-", 1)]
    values = value if isinstance(value, tuple) else (value,)
    if name == "baselines":
        values = values or ("none",)  # without the option, all baselines would run
    return [word for entry_value in values for word in (flag, str(entry_value))]


def lookup_tokens(baseline: str) -> int:
    """Return a baseline's `prompt_lookup_num_tokens`; 0 if it uses no prompt lookup.

    Raises:
        ConfigError: The baseline is unknown, or the length is not a positive integer.
    """
    if baseline in (PLAIN, ASSISTANT, CONTINUOUS):
        return 0
    name, equals, length = baseline.partition("=")
    if name != LOOKUP:
        hint = did_you_mean(baseline, (PLAIN, LOOKUP, ASSISTANT, CONTINUOUS))
        raise ConfigError(f"there is no baseline {baseline!r}.{hint}")
    if not equals:
        return _LOOKUP_TOKENS
    if not length.isdecimal() or int(length) < 1:
        raise ConfigError(
            f"baseline {baseline!r}: the length is {length!r}; write a positive integer, for"
            f" example {LOOKUP}=10."
        )
    return int(length)
