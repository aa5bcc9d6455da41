"""What foresight is made of:

    next state ~ direct @ [state, embedding of the token] + outer @ silu(inner @ [state, embedding
    of the token])

each with its bias; `direct` and `inner` are one matrix. Without the second term it is a linear map.
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
    """Attributes:
    first: [hidden + neurons, hidden + embedding], `direct` and `inner`. bias: [hidden + neurons].
    outer: [hidden, neurons].
    kept: int64 [tokens], those that are guessed, of the vocabulary.
    levels: how many tokens ahead the guesses are worth their time.
    """

    first: Tensor
    bias: Tensor
    outer: Tensor
    kept: Tensor
    levels: int = 1

    @property
    def hidden(self) -> int:
        """The size of a state."""
        return len(self.outer)

    def widened(self, hidden: int, embedding: int) -> Weights:
        """Return the same for a model that was enlarged by dimensions which are always zero
        (`paceline.bench.cost_scale`).
        """
        old = self.hidden
        added, beside = hidden - old, embedding - (self.first.shape[1] - old)
        first = torch.cat(
            (
                functional.pad(self.first[:, :old], (0, added)),
                functional.pad(self.first[:, old:], (0, beside)),
            ),
            dim=1,
        )
        first = torch.cat((functional.pad(first[:old], (0, 0, 0, added)), first[old:]))
        bias = torch.cat((functional.pad(self.bias[:old], (0, added)), self.bias[old:]))
        return Weights(
            first, bias, functional.pad(self.outer, (0, 0, 0, added)), self.kept, self.levels
        )

    def of_tokens_below(self, rows: int) -> Weights:
        """Return the same for a model whose vocabulary has less padding."""
        return replace(self, kept=self.kept[self.kept < rows])

    def to_bytes(self, metadata: dict[str, str]) -> bytes:
        """Return the content of a safetensors file, the weights in bfloat16."""
        content: bytes = safetensors.torch.save(
            self._tensors(), metadata | {"levels": str(self.levels)}
        )
        return content

    def checksum(self, text: str) -> str:
        """Return a SHA-256 over everything a file holds, and a text."""
        digest = hashlib.sha256(f"{text} {self.levels}".encode())
        for name, tensor in self._tensors().items():
            digest.update(f"{name} {tuple(tensor.shape)}".encode())
            digest.update(tensor.view(torch.int16).numpy().tobytes())
        return digest.hexdigest()

    def _tensors(self) -> dict[str, Tensor]:
        """Return what goes into a file."""
        tensors = {
            name: getattr(self, name).detach().cpu().to(torch.bfloat16).contiguous()
            for name in _NAMES[:-1]
        }
        return tensors | {"kept": self.kept.to(torch.int32).cpu().contiguous()}

    @staticmethod
    def from_bytes(content: bytes) -> Weights:
        """Read what `to_bytes` gave.

        Raises:
            ValueError: it is damaged.
        """
        try:
            tensors = safetensors.torch.load(content)
            levels = int(metadata_of(content)["levels"])
            first, bias, outer = (tensors[name].float() for name in _NAMES[:-1])
            weights = Weights(first, bias, outer, tensors["kept"].long(), levels)
        except (safetensors.SafetensorError, KeyError) as error:
            raise ValueError(str(error)) from error
        shapes = [tuple(tensor.shape) for tensor in (first, bias, outer)]
        rows = sum(outer.shape) if outer.dim() == 2 else -1
        fits = (
            first.dim() == 2
            and shapes[0][0] == rows
            and shapes[1] == (rows,)
            and weights.kept.dim() == 1
        )
        if (
            not fits
            or levels < 1
            or not all(tensor.isfinite().all() for tensor in (first, bias, outer))
        ):
            raise ValueError(f"weights of other shapes, or that are no numbers: {shapes}")
        return weights


def metadata_of(content: bytes) -> dict[str, str]:
    """Return what the header of a safetensors file says besides its tensors.

    Args:
        content: the whole file, or its header.

    Raises:
        ValueError: it has no such header.
    """
    size = int.from_bytes(content[:8], "little")
    header = parse_json(content[8 : 8 + size])
    found = header.get("__metadata__") if isinstance(header, dict) else None
    if not isinstance(found, dict):
        raise ValueError("no metadata")
    return {str(name): str(value) for name, value in found.items()}


def ends(model: CachedLM) -> tuple[nn.Embedding, nn.Linear]:
    """Return the modules through which tokens go in and come out of a model that has
    `readable_ends`.
    """
    return embedding_and_lm_head(model.model)


def readable_ends(model: CachedLM) -> bool:
    """Whether tokens go in and come out through weights that can be read."""
    try:
        return all(end.weight.device == model.device for end in embedding_and_lm_head(model.model))
    except UnsupportedModelError:
        return False


def shape_of(model: CachedLM) -> tuple[int, int]:
    """Return the sizes of the inputs, a state and an embedding, and of a state."""
    embedding, head = ends(model)
    return head.in_features + embedding.embedding_dim, head.in_features
