"""Groups of options that configurations share, and configurations that hold such groups, seen as
one flat list of options.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Literal, TypeVar

from paceline import demo
from paceline.errors import ConfigError, did_you_mean
from paceline.util.config import require_range

T = TypeVar("T")
_MOST_THREADS = 1024  # many thousands make OpenMP crash
# metadata of an option of single requests, which a whole run does not have
PER_REQUEST = {"per_request": True}
BatchInvariant = bool | Literal["auto"]
InvarianceWord = Literal["auto", "on", "off"]  # the same on a command line
INVARIANCE_WORDS: dict[InvarianceWord, BatchInvariant] = {"auto": "auto", "on": True, "off": False}
_UNLESS_SAID: InvarianceWord = "auto"
BATCH_INVARIANT = INVARIANCE_WORDS[_UNLESS_SAID]


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """Which models, and what they compute with.

    Attributes:
        model: directory, hub id or GGUF file of the target; "demo" is the embedded pair, "smollm2"
            a real model out of a wheel.
        draft_model: directory, hub id or GGUF file of the draft model; "demo" has one, which needs
            no naming.
        dtype: "auto", "float32", "bfloat16" or "float16".
        device: "auto", "cpu", "cuda", "cuda:1", ...
        threads: CPU threads of torch; default: torch's own choice.
        batch_invariant: the same bits whatever else is in the forward; "auto": where that costs
            under 5 %.

    Raises:
        ConfigError: a value out of range.
    """

    model: str = demo.NAME
    draft_model: str | None = None
    dtype: str = "auto"
    device: str = "auto"
    threads: int | None = None
    batch_invariant: InvarianceWord = _UNLESS_SAID

    @property
    def invariance(self) -> BatchInvariant:
        """The option as `LLM` takes it."""
        return INVARIANCE_WORDS[self.batch_invariant]

    def __post_init__(self) -> None:
        if self.threads is not None:
            require_range("models", "threads", self.threads, 1, _MOST_THREADS)


@dataclass(frozen=True, slots=True)
class PromptOptions:
    """Which prompts.

    Attributes:
        prompts: JSONL file of prompts (id, category, turns), repeatable; default: the embedded
            ones.
        limit: most prompts of each file; 0 = all.
        every: only each n-th prompt of a file, counted before the limit.

    Raises:
        ConfigError: a value out of range.
    """

    prompts: tuple[str, ...] = ()
    limit: int = 0
    every: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "prompts", tuple(map(str, self.prompts)))
        require_range("prompts", "limit", self.limit, 0)
        require_range("prompts", "every", self.every, 1)


def flat(config: Any) -> dict[str, Any]:
    """Return the values of a configuration by name; those of its groups stand beside its own, as on
    a command line.

    Options of single requests are left out.
    """
    values: dict[str, Any] = {}
    for field in fields(config):
        if field.metadata.get("per_request"):
            continue
        value = getattr(config, field.name)
        values |= flat(value) if is_dataclass(value) else {field.name: value}
    return values


def refuse_per_request(owner: str, group: Any) -> None:
    """Refuse options of single requests in what holds for a whole run.

    Raises:
        ConfigError: one of them is set.
    """
    for field in fields(group):
        value = getattr(group, field.name)
        if field.metadata.get("per_request") and value != field.default:
            raise ConfigError(
                f"{owner}: {field.name}: got {value!r} among the sampling options; expected"
                f" {field.default!r} there, since it is an option of single requests. Leave it out."
            )


def changed(config: T, **values: Any) -> T:
    """Return a configuration with other values, its own or those of its groups, each by its name
    alone.

    Raises:
        ConfigError: no such name (the close match is named), or a value out of range.
    """
    names = {field.name for field in fields(config)}  # type: ignore[arg-type]
    for name in values:
        if name not in names | flat(config).keys():
            raise ConfigError(
                f"{type(config).__name__} has no option {name!r}.{did_you_mean(name, flat(config))}"
            )
    own = {name: value for name, value in values.items() if name in names}
    for group_name in names - own.keys():
        group = getattr(config, group_name)
        if is_dataclass(group) and (
            of_group := {name: values[name] for name in flat(group) if name in values}
        ):
            own[group_name] = changed(group, **of_group)
    return replace(config, **own)  # type: ignore[type-var]
