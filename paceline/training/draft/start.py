"""Where a draft begins that does not begin from nothing: at another one, which other answers or
another target taught.
"""

from __future__ import annotations

import dataclasses

from transformers import PreTrainedModel

from paceline.errors import ConfigError
from paceline.model.eagle.modules import READS, layers_read, uses_target_states
from paceline.model.loading import load_draft
from paceline.training.draft.settings import DraftTraining


def shaped_as_start(config: DraftTraining) -> DraftTraining:
    """Return the configuration with the shape of the draft that `start` names, if it names one, and
    with the states it reads.

    Raises:
        ConfigError: it cannot be loaded, is of the other kind, or of another shape than was asked
            for.
    """
    if not config.start:
        return config
    theirs = load_draft(config.start, "float32", "cpu")
    if uses_target_states(theirs) != config.uses_target_states:
        kinds = ("has an embedding of its own", "reads the target's states")
        raise ConfigError(
            f"draft train: start: got {config.start!r}, which {kinds[uses_target_states(theirs)]};"
            f" expected one that {kinds[config.uses_target_states]}. Change reads_states, or begin"
            " with another draft."
        )
    there = theirs.config
    shape = {
        "hidden": there.hidden_size,
        "layers": there.num_hidden_layers,
        "neurons": there.intermediate_size,
    }
    for name, value in shape.items():
        if getattr(config, name) not in (0, value):
            raise ConfigError(
                f"draft train: {name}: got {getattr(config, name)}; expected {value}, as"
                f" {config.start!r} has. Leave it out."
            )
    config = dataclasses.replace(config, **shape)
    if not config.uses_target_states:
        return config
    layers = layers_read(theirs)
    return dataclasses.replace(
        config, reads_at=layers[0] / getattr(there, READS)["depth"] if layers else 0.0
    )


def begin_as(model: PreTrainedModel, start: str) -> None:
    """Give a draft the weights of another of its shape; each keeps the tokens it keeps.

    Raises:
        ConfigError: it cannot be loaded, or is of another shape.
    """
    weights, mine = load_draft(start, "float32", "cpu").state_dict(), model.state_dict()
    for name in sorted({*weights, *mine}):
        theirs, ours = (
            "none" if name not in one else str(list(one[name].shape)) for one in (weights, mine)
        )
        if theirs != ours:
            raise ConfigError(
                f"draft train: start: got {start!r}, whose {name} is {theirs}; expected {ours}, as"
                " drafts for this target have. Begin with another draft, or from nothing."
            )
    model.load_state_dict(weights)
