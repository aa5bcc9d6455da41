"""Reject models that paceline cannot verify losslessly, and explain why."""

from __future__ import annotations

from transformers import PretrainedConfig, PreTrainedModel

from paceline.errors import UnsupportedModelError
from paceline.model.forward_arguments import takes_cache
from paceline.model.layer_kinds import MASKABLE, RECURRENT, STATELESS, states_of
from paceline.model.mixers.recurrence import recurrence_mixer
from paceline.model.mixers.seam import mixers_of
from paceline.model.mixers.upstream import ignores_states

_PICKS_KEYS = ("sparse", "indexed", "compressed")


def refuse_unsupported(model: PreTrainedModel, config: PretrainedConfig, name: str) -> None:
    """Raise an error if the engine cannot verify drafts with a model.

    Args:
        model: Loaded model.
        config: Configuration of the text model.
        name: Class name of the model, for error messages.
    Raises:
        UnsupportedModelError: The model is unsupported; the message says why and what to do.
    """
    if getattr(model.config, "is_encoder_decoder", False):
        raise UnsupportedModelError(
            f"{name} is an encoder-decoder. Use a decoder-only language model."
        )
    if not model.can_generate():
        raise UnsupportedModelError(
            f"{name} has no language-model head; load it with AutoModelForCausalLM."
        )
    ranks = getattr(model, "tp_size", None) or 1
    if ranks > 1:
        raise UnsupportedModelError(
            f"{name} is split over {ranks} processes (tensor parallelism). They would all have to"
            " process the same drafts in the same step, which paceline does not synchronise. Load"
            " it without tp_plan, or serve it with vLLM."
        )
    _refuse_layers(model, config, name)


def _refuse_layers(model: PreTrainedModel, config: PretrainedConfig, name: str) -> None:
    """Raise an error if the engine does not support a model's layers or their cache."""
    if getattr(config, "index_topk", None) is not None:
        raise UnsupportedModelError(
            f"{name} selects keys with an indexer (index_topk), whose cache cannot be rolled back;"
            " use model.generate."
        )
    kinds = set(getattr(config, "layer_types", None) or ()) - MASKABLE
    picking = sorted(kind for kind in kinds if any(part in kind for part in _PICKS_KEYS))
    if picking:
        raise UnsupportedModelError(
            f"{name} selects or compresses keys by blocks ({', '.join(picking)} layers), in a"
            " cache that cannot be rolled back; expected plain attention. Use model.generate for"
            " this model."
        )
    _refuse_states(model, config, name)
    if not takes_cache(model):
        raise UnsupportedModelError(
            f"{name} has no key/value cache, so every token recomputes the whole text and a draft"
            " saves nothing; expected a model whose forward method takes a cache. Use"
            " model.generate for this model."
        )
    if getattr(config, "use_bidirectional_attention", None) in (True, "all"):
        raise UnsupportedModelError(
            f"{name} sees the whole prompt from each of its tokens (a prefix language model), so"
            " that chunked prefill is impossible; expected causal attention. Use model.generate"
            " for this model."
        )


def _refuse_states(model: PreTrainedModel, config: PretrainedConfig, name: str) -> None:
    """Raise an error if recurrent states are outside transformers' cache layers."""
    kinds, states = set(getattr(config, "layer_types", None) or ()), states_of(model)
    if states:
        mixers = mixers_of(model, states)
        if any(ignores_states(mixer) and not recurrence_mixer(mixer) for mixer in mixers.values()):
            raise UnsupportedModelError(
                f"{name} runs a selective scan (Mamba-1) that forgets its recurrent state whenever"
                " it gets several tokens, and other code has replaced or hooked its mixers;"
                " expected the mixers of transformers. Load it without device_map, or use"
                " model.generate for this model."
            )
        if kinds & RECURRENT and not mixers:
            raise UnsupportedModelError(
                f"{name} keeps recurrent state in a cache class of its own, which cannot hold"
                " several requests; expected transformers' cache layers. Use model.generate for"
                " this model."
            )
    elif getattr(model, "_is_stateful", False) or kinds - MASKABLE - STATELESS:
        what = ", ".join(sorted(kinds - MASKABLE - STATELESS)) or "recurrent"
        raise UnsupportedModelError(
            f"{name} keeps recurrent state ({what} layers) outside transformers' cache layers, so"
            " that it cannot be stored per request; expected attention, or layers of the kinds"
            f" {', '.join(sorted(RECURRENT))} or hybrid. Use model.generate for this model."
        )
