"""Start training from an existing draft model."""

from __future__ import annotations

import dataclasses

from torch import nn

from paceline.errors import ConfigError
from paceline.model.eagle.modules import READS, layers_read, uses_target_states
from paceline.model.loading import load_draft
from paceline.training.draft.settings import DraftTraining


def shaped_as_start(config: DraftTraining) -> DraftTraining:
    """Return the settings with the layer sizes of the draft model `config.start`.

    Raises:
        ConfigError: The draft model cannot be loaded, is of a different kind, or its layer sizes
            contradict the settings.
    """
    if not config.start:
        return config
    start = load_draft(config.start, "float32", "cpu")
    if uses_target_states(start) != config.uses_target_states:
        kinds = ("has its own embedding", "reads the target's states")
        raise ConfigError(
            f"\0draft train: start\0: got {config.start!r}, which"
            f" {kinds[uses_target_states(start)]}; expected one that"
            f" {kinds[config.uses_target_states]}. Change kind, or start from another draft."
        )
    shape = {
        "hidden": start.config.hidden_size,
        "layers": start.config.num_hidden_layers,
        "neurons": start.config.intermediate_size,
    }
    for name, value in shape.items():
        if getattr(config, name) not in (0, value):
            raise ConfigError(
                f"\0draft train: {name}\0: got {getattr(config, name)}; expected {value}, as"
                f" {config.start!r} has. Leave it out."
            )
    config = dataclasses.replace(config, **shape)
    if not config.uses_target_states:
        return config
    layers = layers_read(start)
    depth = getattr(start.config, READS)["depth"] if layers else 1
    return dataclasses.replace(config, reads_at=layers[0] / depth if layers else 0.0)


def load_start(model: nn.Module, start: str) -> None:
    """Copy the weights of another draft model, but not its reduced vocabulary.

    Args:
        model: Draft model that receives the weights and will be trained.
        start: Draft model to copy from: directory, hub id or built-in name.
    Raises:
        ConfigError: The draft model cannot be loaded, or has a different shape.
    """
    weights, expected = load_draft(start, "float32", "cpu").state_dict(), model.state_dict()
    for name in sorted({*weights, *expected}):
        shape, expected_shape = (
            str(list(state[name].shape)) if name in state else "none"
            for state in (weights, expected)
        )
        if shape != expected_shape:
            raise ConfigError(
                f"\0draft train: start\0: got {start!r}, whose {name} is {shape}; expected"
                f" {expected_shape}, as drafts for this target have. Start from another draft, or"
                " leave start out."
            )
    model.load_state_dict(weights)
