"""The registry. A new drafter is one file and one line here; its module is imported only when it is chosen.

A drafter class names itself, holds a frozen dataclass `Options` and is built by `Class.build(options, draft_model)`.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

from paceline.config import build_options, parse_spec
from paceline.drafter import Drafter
from paceline.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from paceline.model import CachedLM


@dataclass(frozen=True, slots=True)
class Entry:
    """One registered drafter: where it lives, what it does, and what it needs.

    Attributes:
        needs_trained: a file trained or built for the models at hand, which comes with the embedded ones only.
        needs_store: a token store, named by its option `datastore`.
    """

    module: str
    cls: str
    summary: str
    needs_draft_model: bool = False
    needs_trained: bool = False
    needs_store: bool = False

    def load(self) -> Any:
        """Import its class."""
        return getattr(import_module(f"paceline.drafters.{self.module}"), self.cls)


REGISTRY: dict[str, Entry] = {
    "none": Entry("none", "NoDrafter", "plain decoding: empty trees"),
    "prompt_lookup": Entry("prompt_lookup", "PromptLookup", "continues the latest earlier match of the newest n-gram"),
    "draft_model": Entry(
        "draft_model", "DraftModel", "a small model drafts a tree, or a chain of fixed length", needs_draft_model=True
    ),
    "specdec_pp": Entry(
        "specdec_pp",
        "SpecDecPP",
        "a small model drafts until a trained head expects a rejection",
        needs_draft_model=True,
        needs_trained=True,
    ),
    "ouroboros": Entry(
        "ouroboros", "Ouroboros", "a small model drafts phrase by phrase; the target teaches the phrases", needs_draft_model=True
    ),
    "sssd": Entry("sssd", "Sssd", "what followed the newest tokens in the request and in a datastore, by its chance"),
    "jacobi": Entry("jacobi", "Jacobi", "guesses the whole rest of the answer, or a block of it, and repeats until it agrees"),
    "lookahead": Entry("lookahead", "Lookahead", "the target fills a window with n-grams and verifies those that fit"),
    "rest": Entry("rest", "Rest", "the most frequent continuations of the newest tokens in a datastore", needs_store=True),
    "pia": Entry("pia", "Pia", "phrases of the prompt and of all outputs so far, from tries"),
}


def available() -> list[str]:
    """Names that `create` and `LLM(drafter=...)` accept."""
    return list(REGISTRY)


def entry(name: str) -> Entry:
    """The registry line of `name`.

    Raises:
        ConfigError: no such drafter; the close match is named.
    """
    if name not in REGISTRY:
        raise ConfigError(f"there is no drafter {name!r}.{did_you_mean(name, REGISTRY)}")
    return REGISTRY[name]


def create(spec: str, *, draft_model: str | PreTrainedModel | CachedLM | None = None, **options: Any) -> Drafter:
    """Build a drafter from `"name"` or `"name:key=value,key=value"`.

    Args:
        draft_model: directory, hub id or loaded model, for the drafters that need one.
        options: more options, typed, as keywords.
    Raises:
        ConfigError: unknown name or option, a value out of range, or a missing draft model.
    """
    name, text = parse_spec(spec)
    found = entry(name)
    cls = found.load()
    for key in options.keys() & text.keys():
        raise ConfigError(f"option {key!r} of drafter {name!r} is given twice, in {spec!r} and as a keyword; keep one.")
    chosen = build_options(cls.Options, {**text, **options}, f"drafter {name!r}")
    if not found.needs_draft_model:
        return cast(Drafter, cls.build(chosen))
    if draft_model is None:
        raise ConfigError(f"drafter {name!r} needs a draft model, and none came; pass draft_model=DIRECTORY or a loaded model.")
    from paceline.loading import draft_lm

    return cast(Drafter, cls.build(chosen, draft_lm(draft_model)))
