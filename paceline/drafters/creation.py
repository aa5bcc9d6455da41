"""Build drafters from drafter specs and their options."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paceline.drafters.registry import entry
from paceline.errors import ConfigError
from paceline.util.config import build_options, parse_spec

if TYPE_CHECKING:
    from pathlib import Path

    import torch
    from transformers import PreTrainedModel

    from paceline.core.drafter import Drafter
    from paceline.model.cached_lm import CachedLM


def create(
    spec: str, *, draft_model: str | PreTrainedModel | CachedLM | None = None, **options: Any
) -> Drafter:
    """Build a drafter from "name:key=value,..." or "module:Class:key=value,...".

    Args:
        spec: Drafter spec. The options after the name may be omitted.
        draft_model: Directory, hub id, GGUF file or loaded model, for drafters that use a draft
            model.
        options: Additional options of the drafter, as keyword arguments with Python values.
    Raises:
        ConfigError: A name or option is unknown, a value is out of range, or the draft model is
            missing.
    """
    from paceline.core.drafter import Drafter

    name, text = parse_spec(spec)
    cls = entry(name).load()
    for key in options.keys() & text.keys():
        raise ConfigError(
            f"drafter {name!r}: got option {key!r} twice, in {spec!r} and as a keyword; expected"
            " it once. Keep one."
        )
    chosen = _chosen_options(cls.Options, {**text, **options}, name)
    if draft_model is None and cls.needs_draft_model:
        raise _without_draft_model(name)
    if draft_model is not None and (cls.needs_draft_model or cls.takes_draft_model):
        from paceline.model.loading import draft_lm

        built = cls.build(chosen, draft_lm(draft_model))
    else:
        built = cls.build(chosen)
    if not isinstance(built, Drafter):
        raise ConfigError(
            f"drafter {name!r}: got a {type(built).__name__} from {cls.__name__}.build; expected a"
            " Drafter."
        )
    return built


def check_spec(spec: str, has_draft_model: bool = True) -> None:
    """Check a drafter spec without building the drafter.

    Args:
        spec: Drafter spec.
        has_draft_model: Whether the drafter can use a draft model.
    Raises:
        ConfigError: A name or option is unknown, a value is out of range, or the draft model is
            missing.
    """
    name, text = parse_spec(spec)
    named = entry(name)
    _chosen_options(named.options(), text, name)
    if named.needs_draft_model and not has_draft_model:
        raise _without_draft_model(name)


def _chosen_options(options_class: Any, values: dict[str, Any], name: str) -> Any:
    try:
        return build_options(options_class, values, name)
    except ConfigError as error:
        error.parts = [str(error)]  # these settings are not a command's
        raise


def _without_draft_model(name: str) -> ConfigError:
    return ConfigError(
        f"drafter {name!r} needs a draft model. Pass \0draft_model=DIR\0, with a directory, hub id"
        " or GGUF file."
    )


def uses_draft_model(spec: str, draft_model: object) -> bool:
    """Return whether the drafter for a spec is built with a draft model.

    Args:
        spec: Drafter spec.
        draft_model: The caller's draft model, or None.
    Raises:
        ConfigError: The name is unknown.
    """
    named = entry(parse_spec(spec)[0])
    return named.needs_draft_model or (draft_model is not None and named.takes_draft_model)


class Maker:
    """Builds drafters that share one draft model.

    The draft model is loaded when the first drafter that uses it is built.

    Args:
        draft_model: Directory, hub id, GGUF file or loaded model; None for no draft model.
        dtype: Data type of the draft model's weights.
        device: Device on which the draft model runs.
    """

    def __init__(
        self,
        draft_model: str | Path | PreTrainedModel | None,
        dtype: str | torch.dtype,
        device: str,
    ) -> None:
        self._named, self._dtype, self._device = draft_model, dtype, device
        self._loaded: CachedLM | None = None

    def __call__(self, spec: str) -> Drafter:
        """Build a drafter from its spec.

        Raises:
            ConfigError: A name or option is unknown, a value is out of range, or the draft model
                is missing.
        """
        if (
            entry(parse_spec(spec)[0]).takes_draft_model
            and self._loaded is None
            and self._named is not None
        ):
            from paceline.model.loading import draft_lm, load_draft

            self._loaded = draft_lm(load_draft(self._named, self._dtype, self._device))
        return create(spec, draft_model=self._loaded)
