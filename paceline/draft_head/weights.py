"""Define the weights of a draft head, and read and write them.

The head predicts the next hidden state from a hidden state and the embedding of the chosen token:

    inputs = [state, embedding of the token]
    next state = direct @ inputs + outer @ silu(inner @ inputs)

`direct` and `inner` each have a bias, which the formula omits. `Weights` stores the two matrices as
one matrix. A head without `inner` is a linear map.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn
from torch.nn import functional

from paceline.errors import UnsupportedModelError
from paceline.model.cached_lm import CachedLM
from paceline.model.eagle.modules import embedding_and_lm_head
from paceline.util.files import parse_json

_NAMES = ("first", "bias", "outer", "kept")


@dataclass(frozen=True, slots=True, eq=False)
class Weights:
    """The matrices of a draft head.

    Apart from biases, the head computes direct @ inputs + outer @ silu(inner @ inputs). The inputs
    are the concatenation of a hidden state and a token embedding.

    Attributes:
        first: Rows of `direct` followed by the rows of `inner`, [hidden + neurons, hidden +
            embedding].
        bias: Bias of `direct` followed by the bias of `inner`, [hidden + neurons].
        outer: The matrix `outer`, [hidden, neurons].
        token_ids: Token ids of the reduced draft vocabulary, int64 [tokens].
        levels: Maximum depth of a draft tree, in tokens. Deeper predictions are too inaccurate.
    """

    first: Tensor
    bias: Tensor
    outer: Tensor
    token_ids: Tensor
    levels: int = 1

    @property
    def hidden(self) -> int:
        """Number of dimensions of a hidden state."""
        return len(self.outer)

    def widened(self, hidden: int, embedding: int) -> Weights:
        """Pad the weights with zeros to the size of an enlarged model.

        `paceline.bench.cost_scale` enlarges a model by adding dimensions that stay zero.

        Args:
            hidden: Number of dimensions of a hidden state in the enlarged model.
            embedding: Number of dimensions of a token embedding in the enlarged model.
        """
        old = self.hidden
        more_hidden = hidden - old
        more_embedding = embedding - (self.first.shape[1] - old)
        if not more_hidden and not more_embedding:
            return self
        first = torch.cat(
            (
                functional.pad(self.first[:, :old], (0, more_hidden)),
                functional.pad(self.first[:, old:], (0, more_embedding)),
            ),
            dim=1,
        )
        first = torch.cat((functional.pad(first[:old], (0, 0, 0, more_hidden)), first[old:]))
        bias = torch.cat((functional.pad(self.bias[:old], (0, more_hidden)), self.bias[old:]))
        return Weights(
            first,
            bias,
            functional.pad(self.outer, (0, 0, 0, more_hidden)),
            self.token_ids,
            self.levels,
        )

    def limited_to(self, num_token_ids: int) -> Weights:
        """Remove all token ids except 0 to `num_token_ids` - 1 from the draft vocabulary.

        The head may have been trained for a model whose LM head has more padding rows.
        """
        return replace(self, token_ids=self.token_ids[self.token_ids < num_token_ids])

    def to_bytes(self, metadata: dict[str, str]) -> bytes:
        """Encode the weights in bfloat16 as a safetensors file, with the given metadata."""
        content: bytes = safetensors.torch.save(
            self._tensors(), metadata | {"levels": str(self.levels)}
        )
        return content

    def checksum(self, text: str) -> str:
        """Return a SHA-256 hash of `text`, `levels` and the tensors, in hexadecimal."""
        digest = hashlib.sha256(f"{text} {self.levels}".encode())
        for name, tensor in self._tensors().items():
            digest.update(f"{name} {tuple(tensor.shape)}".encode())
            digest.update(tensor.view(torch.int16).numpy().data)
        return digest.hexdigest()

    def _tensors(self) -> dict[str, Tensor]:
        """Return the tensors to store in a file, by name."""
        tensors = {
            name: getattr(self, name).detach().cpu().to(torch.bfloat16).contiguous()
            for name in _NAMES[:-1]
        }
        return tensors | {"kept": self.token_ids.to(torch.int32).cpu().contiguous()}

    @staticmethod
    def from_bytes(content: bytes) -> Weights:
        """Decode weights from the content of a safetensors file.

        Raises:
            ValueError: The content is damaged, or a tensor has the wrong shape or is not finite.
        """
        try:
            tensors = safetensors.torch.load(content)
            levels = int(metadata_of(content)["levels"])
            first, bias, outer = (tensors[name] for name in _NAMES[:-1])
            weights = Weights(first, bias, outer, tensors["kept"].long(), levels)
        except (safetensors.SafetensorError, KeyError) as error:
            raise ValueError(str(error)) from error
        shapes = [tuple(tensor.shape) for tensor in (first, bias, outer)]
        rows = sum(outer.shape) if outer.dim() == 2 else -1
        fits = (
            first.dim() == 2
            and shapes[0][0] == rows
            and shapes[1] == (rows,)
            and weights.token_ids.dim() == 1
        )
        if not fits or levels < 1 or not all(_is_finite(tensor) for tensor in (first, bias, outer)):
            raise ValueError(f"weights of wrong shapes, or not finite: {shapes}")
        return weights


def _is_finite(tensor: Tensor) -> bool:
    # Testing all numbers with `isfinite` would take 40 times as long.
    return not tensor.numel() or all(bool(limit.isfinite()) for limit in tensor.aminmax())


def metadata_of(content: bytes) -> dict[str, str]:
    """Return the metadata from the header of a safetensors file.

    Args:
        content: The whole file, or only its header.
    Raises:
        ValueError: The content does not begin with a header that contains metadata.
    """
    size = int.from_bytes(content[:8], "little")
    header = parse_json(content[8 : 8 + size])
    metadata = header.get("__metadata__") if isinstance(header, dict) else None
    if not isinstance(metadata, dict):
        raise ValueError("no metadata")
    return {str(name): str(value) for name, value in metadata.items()}


def embedding_and_head(model: CachedLM) -> tuple[nn.Embedding, nn.Linear]:
    """Return a model's embedding and LM head.

    Raises:
        UnsupportedModelError: A weight is neither a plain nor a packed tensor.
    """
    return embedding_and_lm_head(model.model)


def has_plain_embeddings(model: CachedLM) -> bool:
    """Return whether a draft head can read a model's embedding and LM head.

    The weights of both must be on the model's device.
    """
    try:
        return all(
            module.weight.device == model.device for module in embedding_and_lm_head(model.model)
        )
    except UnsupportedModelError:
        return False


def shape_of(model: CachedLM) -> tuple[int, int]:
    """Return the dimensions of a draft head's input and output, in this order.

    An input consists of a hidden state and a token embedding. The output is a hidden state.
    """
    embedding, head = embedding_and_head(model)
    return head.in_features + embedding.embedding_dim, head.in_features
