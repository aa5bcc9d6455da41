"""Define prompts that contain images, videos or audio."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class PrefixStates:
    """Keys and values of a prompt's first tokens, computed by the model's `forward`.

    Attributes:
        layers: Keys and values of each layer, [heads, tokens, dim]; None for a layer that shares
            another layer's cache.
        position_offset: Number added to the index of every later token to get the token's position.
        logits: Logits for the token after these tokens, [vocab]; None if not computed.
        recurrent: Recurrent states after these tokens, by layer index and state name; each has the
            shape [1, ...].
    """

    layers: list[tuple[Tensor, Tensor] | None]
    position_offset: int
    logits: Tensor | None = None
    recurrent: Mapping[int, Mapping[str, Tensor]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Media:
    """Images, videos and audio in one prompt, each represented by placeholder tokens.

    Attributes:
        tensors: Keyword arguments for the model's `forward`. Arguments with one column per token
            cover the whole prompt.
        end: Number of leading tokens up to and including the last placeholder. Only text follows.
        digest: Hash of the first `end` tokens and the tensors. Prompts with equal digests have
            equal keys and values for these tokens.
        states: Keys and values of the first `end` tokens; None if the model must compute them from
            `tensors`.
    """

    tensors: Mapping[str, Tensor] = field(repr=False)
    end: int
    digest: bytes
    states: PrefixStates | None = field(default=None, repr=False)

    @staticmethod
    def of(token_ids: Sequence[int], tensors: Mapping[str, Tensor], end: int) -> Media:
        """Return the media of a prompt, with their digest.

        Args:
            token_ids: Token ids of the whole prompt.
            tensors: Keyword arguments for the model's `forward`, as in `Media.tensors`.
            end: Number of tokens up to and including the last placeholder.
        """
        digest = hashlib.blake2b(np.array(token_ids[:end], dtype=np.int64).tobytes())
        for name in sorted(tensors):
            tensor = tensors[name].detach().cpu().contiguous()
            if _has_columns(name, tensor, len(token_ids)):
                tensor = tensor[:, :end].contiguous()
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            digest.update(tensor.view(-1).view(torch.uint8).numpy().tobytes())
        return Media(tensors, end, digest.digest())

    def key(self) -> Media:
        """Return a copy with `end` and the digest, but without tensors and states."""
        return replace(self, tensors={}, states=None)

    def first_columns(self, count: int, num_tokens: int) -> dict[str, Tensor]:
        """Return `tensors`, cut to the first `count` of the prompt's `num_tokens` tokens."""
        return {
            name: tensor[:, :count] if _has_columns(name, tensor, num_tokens) else tensor
            for name, tensor in self.tensors.items()
        }


class EncodedPrompt(list[int]):
    """Token ids of a prompt with images, videos or audio.

    `LLM.generate` and `LLM.stream` accept an `EncodedPrompt` as a prompt. Copies and slices of an
    `EncodedPrompt` are plain lists without the media.

    Args:
        token_ids: Token ids, with placeholders.
        media: The images, videos and audio.
    Attributes:
        media: The same object as the argument.
    """

    def __init__(self, token_ids: list[int], media: Media) -> None:
        super().__init__(token_ids)
        self.media = media


def shares_media(first: Media | None, second: Media | None, length: int) -> bool:
    """Return whether two requests can share the cache of their first `length` tokens.

    Two requests share either all images or none, because the model computes all tokens up to the
    last image in one forward pass.
    """
    if first is None or second is None:
        return first is second
    return first.digest == second.digest and length >= first.end


def _has_columns(name: str, tensor: Tensor, num_tokens: int) -> bool:
    return name.endswith("_ids") and tuple(tensor.shape) == (1, num_tokens)
