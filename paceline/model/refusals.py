"""Models that cannot be verified losslessly, each with its reason."""

from __future__ import annotations

from transformers import PretrainedConfig, PreTrainedModel

from paceline.errors import UnsupportedModelError
from paceline.model.forward_arguments import takes_cache
from paceline.model.quantisation import dynamic_activations

MASKABLE = {"full_attention", "sliding_attention", "chunked_attention"}
_STATELESS = {"mlp", "moe"}  # layers that keep nothing of earlier tokens
_PICKS_KEYS = ("sparse", "indexed", "compressed")


def refuse_unsupported(model: PreTrainedModel, config: PretrainedConfig, name: str) -> None:
    """Refuse what no forward of ours could verify.

    Args:
        config: of the text model. name: of the class.
    Raises:
        UnsupportedModelError: always with what the model does and what to do.
    """
    if getattr(model.config, "is_encoder_decoder", False):
        raise UnsupportedModelError(
            f"got {name}, an encoder-decoder; expected a decoder-only language model."
        )
    if not model.can_generate():
        raise UnsupportedModelError(
            f"{name} has no language-model head; load it with AutoModelForCausalLM."
        )
    ranks = getattr(model, "tp_size", None) or 1
    if ranks > 1:
        raise UnsupportedModelError(
            f"{name} is split over {ranks} processes (tensor parallelism): all of them would have"
            " to feed the same drafts in the same step, and here each goes by its own clock. Load"
            " it without tp_plan, or serve it with vLLM."
        )
    dynamic = dynamic_activations(model)
    if dynamic is not None:
        raise UnsupportedModelError(
            f"{name} quantises its activations while it runs ({dynamic}): a token's logits can then"
            " depend on what else is in the forward, and drafts would change answers; expected"
            " weights quantised alone, as in GGUF files or with 4 bits of bitsandbytes. Load the"
            " model without dynamic quantisation."
        )
    _refuse_layers(model, config, name)


def _refuse_layers(model: PreTrainedModel, config: PretrainedConfig, name: str) -> None:
    """Refuse models by what their layers keep of a text, and what they see."""
    if getattr(config, "index_topk", None) is not None:
        raise UnsupportedModelError(
            f"{name} selects keys with an indexer (index_topk), whose cache cannot be rolled back;"
            " use model.generate."
        )
    kinds = set(getattr(config, "layer_types", None) or ()) - MASKABLE
    picking = sorted(kind for kind in kinds if any(part in kind for part in _PICKS_KEYS))
    if picking:
        raise UnsupportedModelError(
            f"{name} selects or compresses keys by blocks ({', '.join(picking)} layers), with a"
            " cache of its own that cannot be rolled back; expected plain attention. Use"
            " model.generate for this one."
        )
    if getattr(model, "_is_stateful", False) or kinds:
        what = ", ".join(sorted(kinds - _STATELESS)) or "recurrent"
        raise UnsupportedModelError(
            f"{name} keeps recurrent state ({what} layers) that cannot be rolled back after a"
            " rejected guess; expected models whose layers are all attention. Use model.generate"
            " for this one."
        )
    if not takes_cache(model):
        raise UnsupportedModelError(
            f"{name} has no key/value cache, so every token feeds the whole text again and a draft"
            " saves nothing; expected a model whose forward takes one. Use model.generate for this"
            " one."
        )
    if getattr(config, "use_bidirectional_attention", None) in (True, "all"):
        raise UnsupportedModelError(
            f"{name} sees the whole prompt from each of its tokens (a prefix language model), so"
            " that a prompt cannot be fed in parts; expected causal attention. Use model.generate"
            " for this one."
        )
