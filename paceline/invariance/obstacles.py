"""Explain why a model is not tested for batch invariance."""

from __future__ import annotations

from transformers import PreTrainedModel

from paceline.attention import why_not_by_position
from paceline.core.settings import BatchInvariant
from paceline.invariance.settings import HOW_TO_ENABLE
from paceline.model.layer_kinds import states_of
from paceline.model.mixers.seam import convolutions_of, mixer_for, mixers_of
from paceline.model.per_layer import layer_values
from paceline.model.quantisation import foreign_weights

_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")


def why_not_probed(model: PreTrainedModel, setting: BatchInvariant) -> str | None:
    """Return why a model is not tested for batch invariance; None if it is tested.

    Args:
        model: Loaded model.
        setting: True or "auto". With "auto", models on CUDA are not tested.
    """
    return _why_not_recurrent(model) or why_not_by_position(model) or _why_not_tried(model, setting)


def dependent_layers(model: PreTrainedModel) -> str:
    """Describe a model's experts or recurrent layers in a clause, or return ""."""
    return _mixture(model) or _recurrent(model)


def _why_not_tried(model: PreTrainedModel, setting: BatchInvariant) -> str | None:
    """Return why a model with batch-invariant attention is not tested, or None."""
    if setting == "auto" and model.device.type == "cuda":
        return f"'auto' does not test it on CUDA; {HOW_TO_ENABLE}"
    foreign = foreign_weights(model)
    return foreign and (
        f"{foreign}, and sums over quantised weights, or by another library's code, cannot be"
        " tested individually; expected plain weights in nn.Linear or Conv1D"
    )


def _why_not_recurrent(model: PreTrainedModel) -> str | None:
    """Return why recurrent layers prevent batch invariance, or None."""
    states = states_of(model)
    mixers = [*mixers_of(model, states).values()] or convolutions_of(model, states)
    if not states or (
        model.device.type == "cpu" and mixers and all(mixer_for(mixer).folds for mixer in mixers)
    ):
        return None
    return (
        f"{len(states)} of its layers are recurrent, and paceline does not compute them token by"
        f" token on {model.device.type}; expected recurrences that it knows, on a CPU"
    )


def _mixture(model: PreTrainedModel) -> str:
    """Describe a model's mixture of experts in a clause; return "" for other models."""
    config = model.config.get_text_config(decoder=True)
    for name in _EXPERTS:
        count = max(
            (value for value in layer_values(config, name) if isinstance(value, int)), default=0
        )
        if count > 1:
            return f"{model.__class__.__name__} is a mixture of {count} experts ({name})"
    return ""


def _recurrent(model: PreTrainedModel) -> str:
    """Describe a model's recurrent layers in a clause; return "" if it has none."""
    count = len(states_of(model))
    return f"{model.__class__.__name__} has {count} recurrent layers" if count else ""


def why_no_kernels(model: PreTrainedModel, description: str) -> str:
    """Explain why a model that needs paceline's matrix products cannot use them.

    Args:
        model: Loaded model.
        description: Clause that says why the model needs them (`dependent_layers`).
    """
    if model.device.type != "cpu":
        return f"{description}, and only the products for CPUs compute such a model"
    from paceline.cpu.product_choice import everywhere  # imports the kernels

    if everywhere(model) is not None:
        return f"{description}, and 'auto' tries paceline's products for large models only"
    return (
        f"{description}, whose products paceline cannot compute one expert or token at a time;"
        " expected weights of linear layers and experts with sizes that are multiples of 8"
    )
