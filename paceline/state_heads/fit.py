"""Check that a draft head was made for a target: shapes, vocabulary and embedding."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from paceline.backend.plain_tensors import is_plain
from paceline.errors import ConfigError
from paceline.model.settings import WARN_SKETCH_COSINE
from paceline.state_heads.settings import SAMPLED_ROWS
from paceline.text.token_ids import is_padded


def check_layers(source: str, layers: tuple[int, ...], target: PreTrainedModel) -> None:
    """Check that a target has the layers whose inputs a head reads.

    Args:
        source: Name of the head in error messages.
        layers: Indices of the layers that the head reads, starting from 0.
        target: The model that verifies the drafts.
    Raises:
        ConfigError: The target has too few layers.
    """
    count = target.config.get_text_config(decoder=True).num_hidden_layers
    if not layers or not all(0 <= layer < count for layer in layers):
        raise ConfigError(
            f"state head {source!r}: got a head that reads the inputs of layers"
            f" {', '.join(map(str, layers))}, for a target with {count} layers; expected layers"
            f" from 0 to {count - 1}. Choose the head of this model."
        )


def check_width(source: str, width: int, expected: int) -> None:
    """Check that a head reads states of the same size as the target's.

    Args:
        source: Name of the head in error messages.
        width: Number of values per token that the head reads.
        expected: Number of values per token that the target provides.
    Raises:
        ConfigError: The sizes differ.
    """
    if width != expected:
        raise ConfigError(
            f"state head {source!r}: got a head that reads {width:,} numbers per token; expected"
            f" {expected:,}, the size of this target's states. Choose the head of this model."
        )


def warn_of_vocabulary(source: str, vocab_size: int, target: PreTrainedModel) -> None:
    """Warn if the vocabulary sizes of head and target differ by more than padding."""
    rows = int(target.config.get_text_config(decoder=True).vocab_size)
    if vocab_size != rows and not is_padded(max(vocab_size, rows), min(vocab_size, rows)):
        _warn(source, f"a vocabulary of {vocab_size:,} tokens, and this model has {rows:,}")


def warn_of_embedding(source: str, embedding: Tensor | None, target: PreTrainedModel) -> None:
    """Warn if a head's embedding shows that the head was made for another model.

    Args:
        source: Name of the head in the warning.
        embedding: Embedding in the head's files, [vocabulary, hidden]; None if the files contain
            none.
        target: The model that verifies the drafts.
    """
    module = target.get_input_embeddings()
    if embedding is None or not isinstance(module, nn.Embedding) or not is_plain(module.weight):
        return
    if embedding.shape[1] != module.weight.shape[1]:
        return  # an embedding of another size was trained with the head, not with the target
    closeness = _cosine(embedding, module.weight)
    if closeness < WARN_SKETCH_COSINE:
        _warn(
            source,
            f"another model: the cosine between its embedding and this model's is {closeness:.2f}",
        )


def _cosine(first: Tensor, second: Tensor) -> float:
    """Return the cosine similarity of a sample of centred rows from two embeddings."""
    count = min(len(first), len(second))
    rows = torch.arange(min(count, SAMPLED_ROWS)) * count // min(count, SAMPLED_ROWS)
    sampled = [weight.detach()[rows.to(weight.device)].float().cpu() for weight in (first, second)]
    centred = [entries - entries.mean(0) for entries in sampled]
    norms = centred[0].norm() * centred[1].norm()
    return float((centred[0] * centred[1]).sum() / norms.clamp(min=1e-30))


def _warn(source: str, reason: str) -> None:
    warnings.warn(
        f"state head {source!r} was trained for {reason}. Few of its tokens may be accepted;"
        " answers stay the same. Choose the head of this model.",
        stacklevel=2,
    )
