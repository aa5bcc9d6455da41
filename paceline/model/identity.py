"""Identify a model by a fingerprint of its weights or a sketch of its embedding.

If you copy or rename a checkpoint, or convert it to another dtype, the fingerprint stays the same.
The sketch is a small sample of the embedding. A comparison of sketches also recognises quantised
and fine-tuned copies.
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

from paceline.backend.packed_tensor import PackedTensor
from paceline.backend.plain_tensors import is_plain
from paceline.errors import UnsupportedModelError
from paceline.model.per_layer import value_of
from paceline.model.settings import FINGERPRINT_SAMPLES, MIN_SKETCH_COSINE, SKETCH_SIZE
from paceline.text.token_ids import is_padded

_SIZES = ("model_type", "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")


def model_identity(model: PreTrainedModel) -> tuple[str, int]:
    """Return the fingerprint and the hidden size of a model.

    The fingerprint is a SHA-256 hash of the architecture's sizes and of samples from every weight
    tensor. The samples are rounded to bfloat16. A checkpoint therefore has the same fingerprint in
    float32 and bfloat16. For a model that `paceline.bench.cost_scale` has enlarged, both results
    are those of the original model.
    """
    config = model.config.get_text_config(decoder=True)
    origin = getattr(config, "enlarged_from", None)
    if origin is not None:
        return str(origin["fingerprint"]), int(origin["hidden_size"])
    digest = hashlib.sha256(json.dumps([value_of(config, name) for name in _SIZES]).encode())
    for name, parameter in model.named_parameters():
        digest.update(f"{name} {tuple(parameter.shape)}".encode())
        if isinstance(parameter, PackedTensor):
            digest.update(_bits(_entries(parameter)))
            continue
        if not is_plain(parameter):  # a quantised class may not give access to individual values
            digest.update(type(parameter).__qualname__.encode())
            continue
        flat = parameter.detach().reshape(-1)
        sample = flat[:: max(1, len(flat) // FINGERPRINT_SAMPLES)][:FINGERPRINT_SAMPLES].to(
            "cpu", torch.bfloat16
        )
        digest.update(_bits(sample))
    return digest.hexdigest(), int(config.hidden_size)


def _bits(sample: Tensor) -> bytes:
    return sample.view(torch.int16).numpy().tobytes()


def _entries(weight: PackedTensor) -> Tensor:
    """Return the entries of a packed weight that the fingerprint samples."""
    step = max(1, weight.numel() // FINGERPRINT_SAMPLES)
    indices = torch.arange(0, weight.numel(), step)[:FINGERPRINT_SAMPLES]
    inner = weight.shape[-1]
    rows = weight.unpacked(indices // inner)
    return rows.gather(1, (indices % inner)[:, None])[:, 0].contiguous()


@dataclass(frozen=True, slots=True)
class Sketch:
    """Sample of an embedding, for recognising quantised and fine-tuned copies.

    A draft head that was trained on a model's hidden states also works with models whose weights
    are nearly the same. To find such models, embeddings are compared: embeddings from different
    training runs are unrelated, even if their shapes match.

    Attributes:
        vocab_size: Number of rows in the model's embedding.
        hidden_size: Hidden size of the model. If `paceline.bench.cost_scale` enlarged the model,
            this is the hidden size of the original model.
        layers: Number of decoder layers in the model. If the model was enlarged, this is the
            number of layers in the original model.
        sample: Evenly spaced entries of the embedding, int8 [rows, columns], centred per column
            and scaled by the largest entry.
    """

    vocab_size: int
    hidden_size: int
    layers: int
    sample: NDArray[np.int8]

    @staticmethod
    def from_model(model: PreTrainedModel) -> Sketch:
        """Sample the embedding of a model.

        Raises:
            UnsupportedModelError: The embedding is not a matrix of floating-point numbers.
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
        """Return the cosine similarity between this sketch and the sketch of `model`.

        If the shapes differ, the result is 0. Padding rows in an embedding are ignored.
        """
        try:
            other = Sketch.from_model(model)
            rows = min(self.vocab_size, other.vocab_size)
            if not is_padded(max(self.vocab_size, other.vocab_size), rows):
                return 0.0
            if (self.hidden_size, self.layers) != (other.hidden_size, other.layers):
                return 0.0
            own_sample, other_sample = (
                self.sample.astype(np.float32),
                _sampled(model, self.vocab_size, self.hidden_size),
            )
        except UnsupportedModelError:
            return 0.0
        own_sample = own_sample[: len(other_sample)]
        return float(
            (own_sample * other_sample).sum()
            / max(float(np.linalg.norm(own_sample) * np.linalg.norm(other_sample)), 1e-30)
        )

    def resembles(self, model: PreTrainedModel) -> bool:
        """Return whether the sketch was made from this model or from a close copy of it.

        A close copy is a quantised, fine-tuned or padded version of the model.
        """
        return self.closeness(model) >= MIN_SKETCH_COSINE

    def encode(self) -> str:
        """Encode the sample and its sizes as text of about 6,000 characters."""
        rows, columns = self.sample.shape
        numbers = base64.b64encode(self.sample.tobytes()).decode()
        return f"{self.vocab_size} {self.hidden_size} {self.layers} {rows} {columns} {numbers}"

    @staticmethod
    def decode(text: str) -> Sketch:
        """Restore a sketch from the text that `encode` returned.

        Raises:
            ValueError: The text does not describe a sketch.
        """
        *sizes, numbers = text.split(" ")
        vocab_size, hidden_size, layers, rows, columns = map(int, sizes)
        sample = np.frombuffer(base64.b64decode(numbers, validate=True), dtype=np.int8).reshape(
            rows, columns
        )
        return Sketch(vocab_size, hidden_size, layers, sample)


def _embedding(model: PreTrainedModel) -> Tensor:
    """Return the embedding matrix of a model.

    An EAGLE-style draft model uses the target's embedding. For such a model, return the weight of
    the layer that follows this embedding.
    """
    module = model.get_input_embeddings()
    weight = module.weight if isinstance(module, nn.Embedding) else next(module.parameters(), None)
    if not isinstance(weight, Tensor) or weight.dim() != 2 or not weight.is_floating_point():
        raise UnsupportedModelError(
            f"{type(model).__name__}: got an embedding that is not a matrix of floating-point"
            " numbers."
        )
    return weight.detach()


def _sampled(model: PreTrainedModel, rows: int, columns: int) -> NDArray[np.float32]:
    """Return a sample of the entries of a model's embedding.

    The sampled positions are spaced evenly over a matrix of shape [rows, columns]. Positions below
    the last row of the embedding are skipped. With the same shape, two embeddings that differ only
    by padding rows are therefore sampled at the same positions. The function subtracts the mean of
    each column from the sample.
    """
    weight = _embedding(model)
    columns = min(columns, weight.shape[1])
    row_ids = torch.arange(SKETCH_SIZE) * rows // SKETCH_SIZE
    row_ids = row_ids[row_ids < len(weight)]
    column_ids = torch.arange(SKETCH_SIZE) * columns // SKETCH_SIZE
    try:
        entries = weight[row_ids.to(weight.device)][:, column_ids.to(weight.device)].float().cpu()
        entries.nan_to_num_(0.0, 0.0, 0.0)  # for rows in a damaged checkpoint
    except Exception as error:  # a quantised embedding whose library cannot select rows
        raise UnsupportedModelError(
            f"{type(model).__name__}: got an embedding whose rows cannot be read."
        ) from error
    centred: NDArray[np.float32] = (entries - entries.mean(0)).numpy()
    return centred
