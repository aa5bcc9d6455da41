"""Groups of command-line options. Each option is declared once, in a dataclass whose docstring is
the help text.

`@flattened` shows the fields of such a class as options of the command that takes it: `--threads`,
not `--models.threads`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Annotated, Any, TypeVar, get_type_hints

from cyclopts import Group, Parameter
from cyclopts.field_info import FieldInfo

from paceline.core.request import SamplingParams
from paceline.drafters import entry
from paceline.util.config import cut_outside_quotes, in_quotes, require_range, split_spec
from paceline.util.options import ModelOptions, PromptOptions

T = TypeVar("T")
_SHORT = {"model": "-m", "draft_model": "-d", "max_new_tokens": "-n", "temperature": "-t"}


def _short_name(field: FieldInfo, taken: frozenset[str]) -> str | None:
    return _SHORT.get(field.name)


def _shown_default(value: Any) -> str | None:
    return (
        None if value in ((), "", None) or value is False else str(value)
    )  # those go without saying


DEFAULTS = Parameter(
    short_alias=_short_name, negative=(), show_default=_shown_default
)  # of every option


def flattened(title: str) -> Parameter:
    """Return what shows the fields of a class as options of their own, under a title."""
    return Parameter(name="*", group=Group.create_ordered(title))


def with_known_types(group: type[T]) -> type[T]:
    """Return a class derived from one of another module, whose types would be looked for in its
    own module, with them found.
    """
    group.__init__.__annotations__.update(get_type_hints(group))
    return group


def without(*names: str) -> Parameter:
    """Return the annotation of a group of which a command does not offer the options `names`."""
    return Parameter(parse=re.compile(rf"^(?!(?:{'|'.join(names)})$)"))


def only(*names: str) -> Parameter:
    """Return the annotation of a group, called `models`, of which a command offers no options
    but `names`.
    """
    return Parameter(parse=re.compile(rf"^(?:models|{'|'.join(names)})$"))


def _hide_per_request(group: type) -> None:
    """Offer no options of single requests in any command: a command has its own for all
    requests.
    """
    hints = get_type_hints(group)
    for field in fields(group):
        if field.metadata.get("per_request"):
            field.type = hints[
                field.name
            ]  # a subclass is read in its own module, which may not know the names in it
            group.__annotations__[field.name] = Annotated[field.type, Parameter(parse=False)]


flattened("Models")(ModelOptions)
flattened("Prompts")(PromptOptions)
flattened("Sampling")(SamplingParams)
_hide_per_request(SamplingParams)


@flattened("Parallel run")
@dataclass(frozen=True, slots=True)
class ParallelOptions:
    """A run in several processes.

    Attributes:
        lookahead_parallel: share each draft tree among the processes of torchrun.
        process_timeout: seconds after which a silent process counts as lost.

    Raises:
        ConfigError: a value out of range.
    """

    lookahead_parallel: bool = False
    process_timeout: float = 60.0

    def __post_init__(self) -> None:
        require_range("parallel run", "process_timeout", self.process_timeout, 1)


def split_specs(values: Iterable[str], names: Iterable[str]) -> list[str]:
    """Return the specs in repeated options: separated by spaces, or by commas before one of
    `names`, "none" or module:Class.

    Neither separates within the quotes around a value.
    """
    known = "|".join(re.escape(name) for name in ("none", *names))
    outside = r"[\w.]+:[^\W\d][\w.]*(?=[:,\s]|$)"  # module:Class
    separator = rf"\s+|,\s*(?=(?:{known})\b|{outside})"
    return [spec for value in values for spec in cut_outside_quotes(value, separator) if spec]


def with_store(spec: str, datastore: str | None) -> str:
    """Return `spec` with the store, where the drafter takes one and none is named."""
    name, options = split_spec(spec)
    if (
        datastore is None
        or "datastore=" in options
        or not hasattr(entry(name).options(), "datastore")
    ):
        return spec
    return f"{name}:{','.join(filter(None, [options, f'datastore={in_quotes(datastore)}']))}"
