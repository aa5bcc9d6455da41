"""Define options that several commands share, and flatten configurations."""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Literal, TypeVar

from paceline import demo
from paceline.errors import ConfigError, did_you_mean
from paceline.util.config import require_range
from paceline.util.util_settings import MAX_THREADS

T = TypeVar("T")
EngineName = Literal["transformers", "llama.cpp"]  # library that runs the target
ENGINE: EngineName = "transformers"
WeightFormat = Literal["q8_0", "q4_k"]  # format for packing a checkpoint's weights
InvarianceWord = Literal["auto", "on", "off"]  # values of --batch-invariant
INVARIANCE_WORDS: dict[InvarianceWord, bool | Literal["auto"]] = {
    "auto": "auto",
    "on": True,
    "off": False,
}


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """Target and draft model, with options for how they run.

    Attributes:
        model: Directory, hub id or GGUF file of the target. "demo" is the built-in pair of toy
            models; "smollm2" is a real model from a pip package.
        draft_model: Draft model: directory, hub id or GGUF file. Default: none, or the built-in
            draft model if the target is "demo".
        dtype: Data type: auto, float32, bfloat16 or float16; auto uses the checkpoint's data type.
        device: Torch device, such as cpu, cuda or cuda:1; auto uses a GPU if there is one.
        threads: Number of CPU threads for torch; from 1 to 1024. Default: chosen by torch.
        batch_invariant: Make answers bit-identical regardless of the drafts and of the other
            requests in the batch; auto enables this if it slows forward passes by less than 5 %.
        unpack: Convert a GGUF file to a bfloat16 checkpoint and store it in the cache; --no-unpack
            runs the file's packed weights, whatever the processor. Default: convert only if the
            processor has neither AVX512_BF16 nor AMX.
        weights: On a CPU, pack the weights of a safetensors checkpoint as q8_0 or q4_k. Packing
            changes the model. Default: the weights are not packed.
        engine: Library that runs the target: transformers, or llama.cpp for a GGUF file.

    Raises:
        ConfigError: A value is out of range.
    """

    model: str = demo.NAME
    draft_model: str | None = None
    dtype: str = "auto"
    device: str = "auto"
    threads: int | None = None
    batch_invariant: InvarianceWord = "auto"
    unpack: bool | None = None
    weights: WeightFormat | None = None
    engine: EngineName = ENGINE

    @property
    def invariance(self) -> bool | Literal["auto"]:
        """Return the option `batch_invariant` as the value that `LLM` expects."""
        return INVARIANCE_WORDS[self.batch_invariant]

    def __post_init__(self) -> None:
        if self.threads is not None:
            require_range("models", "threads", self.threads, 1, MAX_THREADS)


@dataclass(frozen=True, slots=True)
class PromptOptions:
    """Options that select prompts from files.

    Attributes:
        prompts: File with prompts, in a format that `generate --file` accepts; repeatable. If the
            tokenizer has a chat template, each prompt is a user message. Default: the built-in
            prompts.
        limit: Maximum number of prompts per file; at least 0; 0 uses all.
        every: Use only every n-th prompt in a file; at least 1. --limit counts only the selected
            prompts.

    Raises:
        ConfigError: A value is out of range.
    """

    prompts: tuple[str, ...] = ()
    limit: int = 0
    every: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "prompts", tuple(map(str, self.prompts)))
        require_range("prompts", "limit", self.limit, 0)
        require_range("prompts", "every", self.every, 1)


def flat(config: Any) -> dict[str, Any]:
    """Return all values in a configuration and in its option groups, by name.

    The result omits per-request options.
    """
    values: dict[str, Any] = {}
    for field in fields(config):
        if field.metadata.get("per_request"):
            continue
        value = getattr(config, field.name)
        values |= flat(value) if is_dataclass(value) else {field.name: value}
    return values


def refuse_per_request(owner: str, group: Any) -> None:
    """Raise an error if the configuration of a run sets a per-request option.

    Args:
        owner: Name of the configuration in error messages.
        group: Option group to check.
    Raises:
        ConfigError: A per-request option is set.
    """
    for field in fields(group):
        value = getattr(group, field.name)
        if field.metadata.get("per_request") and value != field.default:
            raise ConfigError(
                f"{owner}: {field.name}: got {value!r} among the sampling options; expected"
                f" {field.default!r} there, since it is an option of single requests. Leave it out."
            )


def changed(config: T, **values: Any) -> T:
    """Return a copy of a configuration with some values changed.

    Args:
        config: Configuration to copy.
        values: New values by name; names of values in option groups need no prefix.
    Raises:
        ConfigError: A name is unknown (the message names the closest match), or a value is out of
            range.
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
