"""Which model is it? A fingerprint that survives copies, renames and a change of dtype, and a
sketch of its embedding.
"""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import PreTrainedModel

from paceline.cpu.plain_tensors import is_plain
from paceline.errors import UnsupportedModelError
from paceline.model.per_layer import value_of
from paceline.text.token_ids import is_padded

_SAMPLE = 64  # weights of each tensor that go into a fingerprint
# Rounding to 8, 4 and 3 bits in blocks of 32 leaves cosines of 1.00, 0.99 and 0.93; other weights
# have 0.0 +- 0.1.
# below the first it is another model; above the second nothing needs to be said
MIN_SKETCH_COSINE, WARN_SKETCH_COSINE = (0.8, 0.97)
_SKETCHED = 64  # rows and columns of an embedding in its sketch
_SIZES = ("model_type", "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")


def model_identity(model: PreTrainedModel) -> tuple[str, int]:
    """Return fingerprint and hidden size of a model; of the original, where it was enlarged
    (`paceline.bench.cost_scale`).

    The fingerprint is a SHA-256 over the sizes of the architecture and a sample of every weight
    tensor, rounded to bfloat16: a checkpoint has the same one whether it was loaded in float32 or
    in bfloat16.
    """
    config = model.config.get_text_config(decoder=True)
    origin = getattr(config, "enlarged_from", None)
    if origin is not None:
        return str(origin["fingerprint"]), int(origin["hidden_size"])
    digest = hashlib.sha256(json.dumps([value_of(config, name) for name in _SIZES]).encode())
    for name, parameter in model.named_parameters():
        digest.update(f"{name} {tuple(parameter.shape)}".encode())
        if not is_plain(
            parameter
        ):  # quantised: a class of its own, whose numbers may not be had one by one
            digest.update(type(parameter).__qualname__.encode())
            continue
        flat = parameter.detach().reshape(-1)
        sample = flat[:: max(1, len(flat) // _SAMPLE)][:_SAMPLE].to("cpu", torch.bfloat16)
        digest.update(sample.view(torch.int16).numpy().tobytes())
    return digest.hexdigest(), int(config.hidden_size)


@dataclass(frozen=True, slots=True)
class Sketch:
    """A little of a model's embedding, by which its quantised and fine-tuned copies are recognised.

    What is trained on a model's hidden states is of use to all models with nearly the same weights.
    Embeddings of another training have nothing in common with these, whatever their shape.

    Attributes:
        vocab_size, hidden_size, layers: of the model; of the original, where it was enlarged
            (`paceline.bench.cost_scale`).
        sample: int8 [rows, columns], evenly spaced in the embedding, less the mean of each column,
            by its largest number.
    """

    vocab_size: int
    hidden_size: int
    layers: int
    sample: NDArray[np.int8]

    @staticmethod
    def from_model(model: PreTrainedModel) -> Sketch:
        """Take the sketch of a model.

        Raises:
            UnsupportedModelError: its embedding is no matrix of floating-point numbers.
        """
        config = model.config.get_text_config(decoder=True)
        origin = getattr(config, "enlarged_from", None) or {}
        hidden, layers = (
            origin.get("hidden_size", config.hidden_size),
            origin.get("layers", config.num_hidden_layers),
        )
        rows = len(_embedding(model))
        sampled = _sampled(model, rows, hidden)
        scale = 127 / max(float(np.abs(sampled).max()), 1e-30)
        return Sketch(rows, int(hidden), int(layers), np.round(scale * sampled).astype(np.int8))

    def closeness(self, model: PreTrainedModel) -> float:
        """Return the cosine between this sketch and the same sample of a model; 0 where the shapes
        differ.

        Rows that pad one of the embeddings are no difference.
        """
        try:
            other = Sketch.from_model(model)
            rows = min(self.vocab_size, other.vocab_size)
            if not is_padded(max(self.vocab_size, other.vocab_size), rows):
                return 0.0
            if (self.hidden_size, self.layers) != (other.hidden_size, other.layers):
                return 0.0
            own, theirs = (
                self.sample.astype(np.float32),
                _sampled(model, self.vocab_size, self.hidden_size),
            )
        except UnsupportedModelError:
            return 0.0
        own = own[: len(theirs)]
        return float(
            (own * theirs).sum() / max(float(np.linalg.norm(own) * np.linalg.norm(theirs)), 1e-30)
        )

    def resembles(self, model: PreTrainedModel) -> bool:
        """Whether a model has nearly the same embedding: it is the same, quantised, fine-tuned
        or padded.
        """
        return self.closeness(model) >= MIN_SKETCH_COSINE

    def encode(self) -> str:
        """Return it as text, some 6,000 characters."""
        rows, columns = self.sample.shape
        numbers = base64.b64encode(self.sample.tobytes()).decode()
        return f"{self.vocab_size} {self.hidden_size} {self.layers} {rows} {columns} {numbers}"

    @staticmethod
    def decode(text: str) -> Sketch:
        """Read what `encode` wrote.

        Raises:
            ValueError: it is none.
        """
        *sizes, numbers = text.split(" ")
        vocab_size, hidden_size, layers, rows, columns = map(int, sizes)
        sample = np.frombuffer(base64.b64decode(numbers, validate=True), dtype=np.int8).reshape(
            rows, columns
        )
        return Sketch(vocab_size, hidden_size, layers, sample)


def _embedding(model: PreTrainedModel) -> Tensor:
    """Return the matrix in which token ids become numbers; of a draft that reads states, the one
    behind the target's.
    """
    module = model.get_input_embeddings()
    weight = module.weight if isinstance(module, nn.Embedding) else next(module.parameters(), None)
    if not isinstance(weight, Tensor) or weight.dim() != 2 or not weight.is_floating_point():
        raise UnsupportedModelError(
            f"{type(model).__name__}: got an embedding that is no matrix of floating-point numbers."
        )
    return weight.detach()


def _sampled(model: PreTrainedModel, rows: int, columns: int) -> NDArray[np.float32]:
    """Return evenly spaced numbers of an embedding of so many rows and columns, as far as the
    model has these rows.
    """
    weight = _embedding(model)
    columns = min(columns, weight.shape[1])
    chosen = torch.arange(_SKETCHED) * rows // _SKETCHED
    chosen = chosen[chosen < len(weight)]
    among = torch.arange(_SKETCHED) * columns // _SKETCHED
    try:
        found = weight[chosen.to(weight.device)][:, among.to(weight.device)].float().cpu()
        found.nan_to_num_(0.0, 0.0, 0.0)  # rows of a damaged checkpoint
    except Exception as error:  # a quantised embedding, whose library does not take its rows apart
        raise UnsupportedModelError(
            f"{type(model).__name__}: got an embedding whose rows cannot be read."
        ) from error
    made: NDArray[np.float32] = (found - found.mean(0)).numpy()
    return made
