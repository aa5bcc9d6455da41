"""What a bench run does: a frozen dataclass, checked when it is made, and the command line that repeats it."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, fields
from typing import Any

from paceline.bench.cost_scale import CostScale
from paceline.config import parse_spec, require_range
from paceline.drafters import entry
from paceline.errors import ConfigError, did_you_mean
from paceline.sequence import SamplingParams

PLAIN = "transformers"
LOOKUP = "transformers:prompt_lookup"
ASSISTANT = "transformers:assistant"
_LOOKUP_TOKENS = 10
_REPEATED = {"drafters": "--drafter", "baselines": "--baseline", "prompts": "--prompts"}


@dataclass(frozen=True, slots=True)
class BenchConfig:
    """One bench run.

    Attributes:
        model, draft_model: directory or hub id; "demo" is the embedded pair, and brings its draft along.
        drafters: specs as in `LLM(drafter=...)`, each a method of its own.
        baselines: out of "transformers" (`model.generate`), "transformers:prompt_lookup[=TOKENS]" and
            "transformers:assistant" (the draft model as assistant, at its default settings).
        prompts: JSONL files; none = the embedded prompts. limit, every: which of them, see `load_prompts`.
        max_new_tokens, temperature, top_k, top_p, min_p, repetition_penalty, seed, ignore_eos: as in `SamplingParams`.
        batch: prompts answered together. max_nodes: most draft nodes verified per prompt and step, as in `LLM`.
        dtype, device: as in `LLM`. threads: CPU threads of torch; None = leave as it is.
        cost_scale, draft_cost_scale: "WIDTHxLAYERS" to enlarge target and draft to, see `paceline.bench.enlarge`.
        repeats: passes over all prompts, each with fresh drafters. warmup: untimed short answers per method beforehand.
        max_seconds: end after the prompt during which this time is up, all methods having answered it; 0 = never.
        lookahead_parallel: ranks that share the draft trees of the drafters with a window; 0 = one process. The other methods
            run on every rank as they are. Times are those of rank 0, fed tokens those of the busiest rank.

    Raises:
        ConfigError: an unknown name or a value out of range.
    """

    model: str
    draft_model: str | None = None
    drafters: tuple[str, ...] = ("none", "prompt_lookup")
    baselines: tuple[str, ...] = (PLAIN,)
    prompts: tuple[str, ...] = ()
    limit: int = 0
    every: int = 1
    max_new_tokens: int = 128
    batch: int = 1
    max_nodes: int = 256
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int = 0
    ignore_eos: bool = False
    dtype: str = "auto"
    device: str = "auto"
    threads: int | None = None
    cost_scale: str | None = None
    draft_cost_scale: str | None = None
    repeats: int = 1
    warmup: int = 1
    max_seconds: float = 0.0
    lookahead_parallel: int = 0

    def __post_init__(self) -> None:
        for name in _REPEATED:
            object.__setattr__(self, name, tuple(getattr(self, name)))
        for name, low in (
            ("limit", 0),
            ("every", 1),
            ("batch", 1),
            ("max_nodes", 0),
            ("repeats", 1),
            ("warmup", 0),
            ("max_seconds", 0),
            ("lookahead_parallel", 0),
            ("threads", 1),
        ):
            if getattr(self, name) is not None:
                require_range("bench", name, getattr(self, name), low)
        self.sampling()
        for spec in self.drafters:
            entry(parse_spec(spec)[0])
        for baseline in self.baselines:
            lookup_tokens(baseline)
        names = [*self.baselines, *self.drafters]
        for name in names:
            if names.count(name) > 1:
                raise ConfigError(f"bench: method {name!r} is given twice; keep one.")
        if not names:
            raise ConfigError("bench: there is nothing to run; give at least one drafter or baseline.")
        for scale in (self.cost_scale, self.draft_cost_scale):
            if scale is not None:
                CostScale.parse(scale)

    def sampling(self) -> SamplingParams:
        """The parameters of every request."""
        return SamplingParams(
            self.max_new_tokens, self.temperature, self.top_k, self.top_p, self.min_p, self.repetition_penalty,
            self.seed, (), self.ignore_eos,
        )  # fmt: skip

    def needs_draft(self) -> list[str]:
        """Methods that need a draft model (transformers' assistant runs with one prompt at a time only)."""
        drafters = [spec for spec in self.drafters if entry(parse_spec(spec)[0]).needs_draft_model]
        return drafters + [name for name in self.baselines if name == ASSISTANT and self.batch == 1]

    def command(self) -> str:
        """The `paceline bench` command line of this run; options at their defaults are left out, methods never."""
        words = ["paceline", "bench", "--model", self.model]
        if self.lookahead_parallel:
            start = ["torchrun", "--nproc-per-node", str(self.lookahead_parallel), "-m"]
            words = [*start, *words, "--lookahead-parallel"]
        for field in fields(self)[1:]:
            value = getattr(self, field.name)
            if field.name != "lookahead_parallel" and (value != field.default or field.name in ("drafters", "baselines")):
                words += option_words(field.name, value)
        return shlex.join(words)


def option_words(name: str, value: Any) -> list[str]:
    """The command-line words that set a field of a configuration: the flag alone for True, once per entry of a tuple."""
    flag = _REPEATED.get(name, "--" + name.replace("_", "-"))
    if value is True:
        return [flag]
    values = value if isinstance(value, tuple) else (value,)
    if name == "baselines":
        values = values or ("none",)  # left out, the option would mean all of them
    return [word for one in values for word in (flag, str(one))]


def lookup_tokens(baseline: str) -> int:
    """`prompt_lookup_num_tokens` of a baseline name; 0 for those that are not prompt lookup.

    Raises:
        ConfigError: no such baseline, or a length that is no positive integer.
    """
    if baseline in (PLAIN, ASSISTANT):
        return 0
    name, equals, length = baseline.partition("=")
    if name != LOOKUP:
        raise ConfigError(f"there is no baseline {baseline!r}.{did_you_mean(baseline, (PLAIN, LOOKUP, ASSISTANT))}")
    if not equals:
        return _LOOKUP_TOKENS
    if not length.isdecimal() or int(length) < 1:
        raise ConfigError(f"baseline {baseline!r}: the length is {length!r}; write a positive integer, for example {LOOKUP}=10.")
    return int(length)
