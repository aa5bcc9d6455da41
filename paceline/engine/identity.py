"""Which model is it? A fingerprint that survives copies, renames and a change of dtype."""

from __future__ import annotations

import hashlib
import json

import torch
from transformers import PreTrainedModel

from paceline.engine.per_layer import value_of
from paceline.engine.plain import is_plain

_SAMPLE = 64  # weights of each tensor that go into a fingerprint
_SIZES = ("model_type", "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")


def model_identity(model: PreTrainedModel) -> tuple[str, int]:
    """Return fingerprint and hidden size of a model; of the original, where it was enlarged (`paceline.bench.cost_scale`).

    The fingerprint is a SHA-256 over the sizes of the architecture and a sample of every weight tensor, rounded to bfloat16: a
    checkpoint has the same one whether it was loaded in float32 or in bfloat16.
    """
    config = model.config.get_text_config(decoder=True)
    origin = getattr(config, "enlarged_from", None)
    if origin is not None:
        return str(origin["fingerprint"]), int(origin["hidden_size"])
    digest = hashlib.sha256(json.dumps([value_of(config, name) for name in _SIZES]).encode())
    for name, parameter in model.named_parameters():
        digest.update(f"{name} {tuple(parameter.shape)}".encode())
        if not is_plain(parameter):  # quantised: a class of its own, whose numbers may not be had one by one
            digest.update(type(parameter).__qualname__.encode())
            continue
        flat = parameter.detach().reshape(-1)
        sample = flat[:: max(1, len(flat) // _SAMPLE)][:_SAMPLE].to("cpu", torch.bfloat16)
        digest.update(sample.view(torch.int16).numpy().tobytes())
    return digest.hexdigest(), int(config.hidden_size)
