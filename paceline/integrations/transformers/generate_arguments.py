"""Read arguments of `model.generate`, and build stopping criteria."""

from __future__ import annotations

import copy
import inspect
from typing import Any

from transformers import PreTrainedModel
from transformers.generation import (
    StoppingCriteriaList,
    StopStringCriteria,
)

from paceline.errors import ConfigError


def arguments_of_generate(strategy: object) -> dict[str, Any]:
    """Return the arguments of the `model.generate` call that runs a strategy.

    A strategy is the callable that a user passes to `generate` as `custom_generate`. `generate`
    does not pass the streamer, the assistant or the tokenizer to the strategy. This function
    therefore reads these arguments from the calling frames. When the strategy runs, `generate` has
    already removed the tokenizer from its own arguments. The frames of the functions that wrap
    `generate` (`torch.no_grad`, PEFT) still contain the tokenizer.
    """
    given: dict[str, Any] = {}
    frame = inspect.currentframe()
    while frame is not None:
        code = frame.f_code  # reading f_locals keeps variables alive, so other frames are skipped
        if (
            not given
            and code.co_name == "generate"
            and frame.f_locals.get("custom_generate") is strategy
        ):
            given = dict(frame.f_locals)
        elif given:
            around = frame.f_locals.get("kwargs") if "kwargs" in code.co_varnames else None
            if not isinstance(around, dict) or around.get("custom_generate") is not strategy:
                break
            if "tokenizer" in around:
                return given | {"tokenizer": around["tokenizer"]}
        frame = frame.f_back
    return given


def stop_criterion(stop: str | list[str], tokenizer: Any) -> StopStringCriteria:
    """Create a stopping criterion that ends a row at a stop string.

    Raises:
        ConfigError: No tokenizer was passed.
    """
    if tokenizer is None:
        raise ConfigError(
            "stop_strings: a tokenizer is needed to match them. Pass tokenizer=...; if"
            " model.generate does not pass it on, call the generate of"
            " paceline.integrations.transformers."
        )
    return StopStringCriteria(stop_strings=stop, tokenizer=tokenizer)


def with_stop_strings(
    model: PreTrainedModel, stop: Any, tokenizer: Any, options: dict[str, Any]
) -> dict[str, Any]:
    """Replace the stop strings in the options with a stopping criterion.

    The caller's objects are not modified.
    """
    config = options.get("generation_config")
    for source in (config, model.generation_config):
        stop = stop if stop is not None else getattr(source, "stop_strings", None)
    if stop is None:
        return options
    criteria = [*(options.get("stopping_criteria") or ()), stop_criterion(stop, tokenizer)]
    options = {**options, "stopping_criteria": StoppingCriteriaList(criteria)}
    if config is not None:
        options["generation_config"] = copy.deepcopy(config)
        options["generation_config"].stop_strings = None
    if model.generation_config.stop_strings is not None:
        options["stop_strings"] = None
    return options
