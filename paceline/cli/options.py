"""Define groups of command-line options as dataclasses.

The docstrings of the dataclasses are the help texts of the options.

`@flattened` shows the fields of such a class as options of the command: `--threads` instead of
`--models.threads`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Annotated, Any, TypeVar, get_type_hints

from cyclopts import App, Group, Parameter
from cyclopts.field_info import FieldInfo

from paceline.cli.commands import COMMANDS
from paceline.cli.model_option import MODEL
from paceline.core.sampling_params import SamplingParams
from paceline.drafters import entry
from paceline.util.config import cut_outside_quotes, in_quotes, require_range, split_spec
from paceline.util.options import ModelOptions, PromptOptions

T = TypeVar("T")
DEFAULT_DRAFTER = "auto"
# Titles of option groups, in the order in which the help shows them.
_TITLES = (
    "Methods",
    "Quantity",
    "Simulation",
    "Device",
    "Workload",
    "Address and keys",
    "Limits",
    "Input and output",
    "Writing",
    "Recording",
    "Training",
    "Engine",
    "Models",
    "Prompts",
    "Sampling",
    "Measuring",
    "With --serve",
    "Files",
    "Parallel run",
)
UNGROUPED = Group("Options", sort_key=-1)  # the command's own options
SHORT = {"draft_model": "-d", "max_new_tokens": "-n", "temperature": "-t"}


def _short_name(field: FieldInfo, taken: frozenset[str]) -> str | None:
    return SHORT.get(field.name)


def _shown_default(value: Any) -> str | None:
    return None if value in ((), "", None) or value is False else str(value)


# for every option
DEFAULTS = Parameter(short_alias=_short_name, negative=(), show_default=_shown_default)


def command_group(name: str) -> App:
    """Return an application for commands such as `paceline datastore build`."""
    return App(name=name, help=COMMANDS[name], group_parameters=UNGROUPED)


def flattened(title: str) -> Parameter:
    """Return a parameter that shows the fields of a class as options, under a title."""
    return Parameter(name="*", group=Group(title, sort_key=_TITLES.index(title)))


def with_known_types(group: type[T]) -> type[T]:
    """Resolve the type annotations that a class inherits from another module.

    Otherwise, cyclopts would look up the names in these annotations in the module of the class,
    which may not define them.
    """
    group.__init__.__annotations__.update(get_type_hints(group))
    return group


def without(*names: str) -> Parameter:
    """Return a parameter that hides the named options of a group."""
    return Parameter(parse=re.compile(rf"^(?!(?:{'|'.join(names)})$)"))


def only(*names: str) -> Parameter:
    """Return a parameter that shows only the named options of the group `models`."""
    return Parameter(parse=re.compile(rf"^(?:models|{'|'.join(names)})$"))


def switchable(group: type, name: str) -> None:
    """Add `--no-NAME`, which turns off an option that is on by default."""
    hint = get_type_hints(group)[name]
    parameter = Parameter(negative=f"--no-{name.replace('_', '-')}")
    group.__annotations__[name] = Annotated[hint, parameter]


def _hide_per_request(group: type) -> None:
    """Hide per-request options, because a command's options apply to all requests."""
    hints = get_type_hints(group)
    for field in fields(group):
        if field.metadata.get("per_request"):
            field.type = hints[field.name]  # the module of a subclass may not import the type
            group.__annotations__[field.name] = Annotated[field.type, Parameter(parse=False)]


def model_argument(help_text: str) -> Parameter:
    """Return the parameter for a model that is a command's first argument."""
    return Parameter(name=MODEL, help=f"{help_text} Also --model, -m.")


TargetModel = Annotated[
    str,
    model_argument(
        "Target model: directory, hub id or GGUF file; 'demo' and 'smollm2' are built-in models."
    ),
]
WITHOUT_MODEL = without("model")


@flattened("Engine")
@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Options for how the engine decodes.

    Attributes:
        drafter: Drafter spec of the form name:key=value,key=value; see `paceline drafters`.
        tokenizer: Tokenizer: directory or hub id. Default: the model's own tokenizer.
        max_length: Maximum number of tokens in the prompt and answer together; from 2 to the
            model's context length. Default: the model's context length.

    Raises:
        ConfigError: A value is out of range.
    """

    drafter: str = DEFAULT_DRAFTER
    tokenizer: str | None = None
    max_length: int | None = None

    def __post_init__(self) -> None:
        if self.max_length is not None:
            require_range("engine", "max_length", self.max_length, 2)


@flattened("Methods")
@dataclass(frozen=True, slots=True)
class MethodOptions:
    """Methods that a benchmark compares.

    Attributes:
        drafters: Drafter specs; repeatable, or separated by spaces or commas. Default: all drafters
            that the given models support.
        baselines: Baselines: transformers, transformers:prompt_lookup, transformers:assistant or
            transformers:generate_batch; repeatable, or separated by spaces or commas; 'none' runs
            no baselines. Default: transformers, transformers:prompt_lookup and, if there is a draft
            model, transformers:assistant.
    """

    drafters: Annotated[tuple[str, ...], Parameter(name=("--drafter", "--drafters"))] = ()
    baselines: Annotated[tuple[str, ...], Parameter(name=("--baseline", "--baselines"))] = ()


flattened("Models")(ModelOptions)
switchable(ModelOptions, "unpack")
flattened("Prompts")(PromptOptions)
flattened("Sampling")(SamplingParams)
_hide_per_request(SamplingParams)


@flattened("Parallel run")
@dataclass(frozen=True, slots=True)
class ParallelOptions:
    """Options for a command that runs in several processes.

    Attributes:
        lookahead_parallel: Split every draft tree among the processes that torchrun started.
        process_timeout: Number of seconds to wait for a message from another process before the
            run fails; at least 1.

    Raises:
        ConfigError: A value is out of range.
    """

    lookahead_parallel: bool = False
    process_timeout: float = 60.0

    def __post_init__(self) -> None:
        require_range("parallel run", "process_timeout", self.process_timeout, 1)


def split_specs(values: Iterable[str]) -> list[str]:
    """Split repeated options into drafter specs.

    A space separates specs, as does a comma before a name or module:Class. A comma before
    key=value separates two options of one spec. Text in quotation marks is not split.
    """
    separator = r"\s+|,\s*(?=[^\W\d][\w.-]*(?:[:,\s]|$))"
    return [spec for value in values for spec in cut_outside_quotes(value, separator) if spec]


def with_store(spec: str, datastore: str | None) -> str:
    """Return the spec, adding the datastore if the drafter accepts one.

    A spec that already names a datastore is returned unchanged.
    """
    name, options = split_spec(spec)
    if (
        datastore is None
        or "datastore=" in options
        or not hasattr(entry(name).options(), "datastore")
    ):
        return spec
    return f"{name}:{','.join(filter(None, [options, f'datastore={in_quotes(datastore)}']))}"
