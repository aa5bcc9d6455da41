"""Select rotary frequencies by text length, for LongRoPE and dynamic NTK.

In transformers, the largest position in a forward pass determines the frequencies of all tokens.
In paceline, a forward pass may mix draft tokens, several requests and prompt chunks. This module
therefore selects the frequencies of each token by the length of the token's own text.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import MethodType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import DynamicCache, PretrainedConfig, PreTrainedModel

from paceline.core.request import Request
from paceline.core.tree import DraftTree, IntArray
from paceline.errors import UnsupportedModelError
from paceline.model.forward_arguments import GENERATE_CACHE

_SWITCH = "original_max_position_embeddings"


class TextLengths:
    """Text lengths that determine the rotary frequencies in a forward pass.

    Attributes:
        of_tokens: Text length for each token, [rows, columns]; None means that the largest
            position determines all frequencies, as in transformers.
    """

    def __init__(self) -> None:
        self.of_tokens: IntArray | None = None

    def set(
        self, requests: Sequence[Request], positions: IntArray, counts: IntArray | None = None
    ) -> None:
        """Set the text lengths for the next forward pass.

        Args:
            requests: Requests in the batch.
            positions: Text position of each token, [rows, columns].
            counts: Number of tokens of each request, [requests], if all requests share one row.
                None means that each request has its own row.
        """
        min_lengths = np.array([request.rotary_length for request in requests], dtype=np.int64)
        rows = min_lengths[:, None] if counts is None else np.repeat(min_lengths, counts)[None]
        self.of_tokens = np.maximum(rows, positions + 1)


def switch_lengths(config: PretrainedConfig) -> tuple[int, ...]:
    """Return the text lengths, ascending, beyond which the frequencies change.

    With dynamic NTK, the result is empty: the frequencies change only beyond
    `max_position_embeddings`, and the engine rejects texts above that length.
    """
    return tuple(
        sorted(
            {
                switch
                for parameters in _parameters(config)
                if (switch := _switch(parameters)) is not None
            }
        )
    )


def _parameters(config: PretrainedConfig) -> Iterable[dict[str, Any]]:
    """Return a model's rotary parameters: a single set, or one per kind of layer."""
    known = getattr(config, "rope_parameters", None) or {}
    return [parameters for parameters in known.values() if isinstance(parameters, dict)] or [known]


def _switch(parameters: dict[str, Any]) -> int | None:
    return int(parameters[_SWITCH]) if parameters.get("rope_type") == "longrope" else None


def restart_length(model: PreTrainedModel, config: PretrainedConfig) -> int | None:
    """Return the text length beyond which `model.generate` recomputes the whole text.

    When a text grows beyond this length, `generate` processes the text again from the first token,
    with different rotary frequencies. None means that `generate` never recomputes a text.

    Raises:
        UnsupportedModelError: `generate` recomputes the text at one length but changes the
            frequencies at another, or the rotary embedding is not transformers' own.
    """
    switches = switch_lengths(config)
    if not switches:
        return None
    if not any(is_length_dependent(module) for module in model.modules()):
        raise UnsupportedModelError(
            f"{type(model).__name__} has LongRoPE frequencies in a rotary embedding of its own;"
            " expected transformers' own, in which the length of each text can be set. Use"
            " model.generate for this model."
        )
    other = getattr(config, _SWITCH, None)
    restarts = [
        length
        for length in {*switches, *([other] if other else [])}
        if _drops_cache(model, int(length))
    ]
    if restarts and (len(switches) > 1 or restarts != [*switches]):
        raise UnsupportedModelError(
            f"{type(model).__name__} changes its rotary frequencies beyond"
            f" {', '.join(map(str, switches))} tokens, but its generate recomputes texts beyond"
            f" {', '.join(map(str, restarts))} tokens; expected the same length for both."
            f" Correct {_SWITCH} in the model's config."
        )
    return restarts[0] if restarts else None


class _Filled(DynamicCache):  # type: ignore[misc]
    """An empty cache that claims to hold `length` tokens."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self._length = length

    def __len__(self) -> int:
        return 1

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self._length


def _drops_cache(model: PreTrainedModel, length: int) -> bool:
    """Return whether `generate` drops the cache when it holds `length` tokens."""
    cache, ids = _Filled(length), torch.zeros(1, length + 1, dtype=torch.int64)
    options = {"next_sequence_length": 1, "use_cache": True, GENERATE_CACHE: cache}
    prepared = model.prepare_inputs_for_generation(ids, **options)
    return prepared.get(GENERATE_CACHE) is not cache


def same_rotary_frequencies(request: Request, other: Request, switches: tuple[int, ...]) -> bool:
    """Return whether two requests use the same rotary frequencies for a common prefix."""
    return all(
        (request.rotary_length > switch) == (other.rotary_length > switch) for switch in switches
    )


def cut_at_switch(tree: DraftTree, request: Request, switch: int) -> DraftTree:
    """Remove from a tree the nodes that would extend its text beyond `switch` tokens.

    Beyond this length, the rotary frequencies change, so these nodes would require different keys
    for the preceding text.
    """
    if request.rotary_length > switch or len(request) + len(tree) <= switch:
        return tree
    return tree.shallower_than(switch - len(request) + 1)


def restart_beyond_switch(request: Request, switch: int) -> None:
    """Discard a request's cached tokens when its text first exceeds `switch` tokens."""
    if request.finish_reason is None and request.rotary_length <= switch < len(request):
        request.rotary_length, request.cached = len(request), 0


def is_length_dependent(module: nn.Module) -> bool:
    """Return whether a rotary embedding's frequencies depend on the text length."""
    kinds = getattr(module, "rope_type", None)
    return any(
        kind == "longrope" or "dynamic" in kind
        for kind in (kinds.values() if isinstance(kinds, dict) else [kinds or ""])
    )


def use_token_frequencies(twin: nn.Module, lengths: TextLengths) -> None:
    """Make a copied rotary embedding select the frequencies for each token separately.

    The copy also receives separate buffers, which no other code changes.

    Args:
        twin: Copy of the model's rotary embedding.
        lengths: Text lengths, which the model runner sets before each forward pass.
    """
    own = vars(twin)
    buffers = {
        name: None if buffer is None else buffer.clone() for name, buffer in twin._buffers.items()
    }
    for name, current in buffers.items():
        original = getattr(twin, _original_name(name), None)
        if current is not None and isinstance(original, Tensor):
            # An earlier, longer text may have changed the current frequencies.
            buffers[name] = original.detach().clone().to(current.device)
    own["_buffers"] = buffers
    for name in [name for name in own if name.endswith("max_seq_len_cached")]:
        own[name] = own["original_max_seq_len"]
    forward = own.get("forward") or MethodType(type(twin).forward, twin)
    own["forward"] = _TokenFrequencies(twin, forward, lengths)


def _original_name(name: str) -> str:
    """Return the name of the attribute that stores the initial frequencies.

    `name` is the attribute with the current frequencies, such as `inv_freq` or
    `full_attention_inv_freq`.
    """
    return name.removesuffix("inv_freq") + "original_inv_freq" if name.endswith("inv_freq") else ""


class _TokenFrequencies:
    """The `forward` of a rotary embedding that selects frequencies per token."""

    def __init__(self, twin: nn.Module, forward: Any, lengths: TextLengths) -> None:
        self._config: PretrainedConfig = vars(twin)["config"]
        self._forward, self._lengths = forward, lengths

    def __call__(self, x: Tensor, position_ids: Tensor, layer_type: str | None = None) -> Any:
        """Return the cosines and sines of each token, or the model's equivalent.

        Each result has the shape [..., rows, columns, n].
        """
        kind = {} if layer_type is None else {"layer_type": layer_type}
        known = self._config.rope_parameters
        switch, lengths = (
            _switch(known if layer_type is None else known[layer_type]),
            self._lengths.of_tokens,
        )
        if switch is None or lengths is None:
            return self._forward(x, position_ids, **kind)
        long = lengths > switch
        if not long.any():
            return self._short(x, position_ids, switch, kind)
        long_result = self._long(x, position_ids, switch, kind)
        if long.all():
            return long_result
        is_long = torch.from_numpy(long[..., None]).to(position_ids.device, non_blocking=True)
        short_result = self._short(x, position_ids, switch, kind)
        if isinstance(long_result, Tensor):
            return torch.where(is_long, long_result, short_result)
        return tuple(
            torch.where(is_long, long_part, short_part)
            for long_part, short_part in zip(long_result, short_result, strict=True)
        )

    def _short(self, x: Tensor, position_ids: Tensor, switch: int, kind: dict[str, str]) -> Any:
        return self._forward(x, position_ids.clamp(max=switch - 1), **kind)

    def _long(self, x: Tensor, position_ids: Tensor, switch: int, kind: dict[str, str]) -> Any:
        """Run the original method with the rotary frequencies of long texts.

        This method appends a position beyond the switch, so that the original method selects
        these frequencies. The result for that position is dropped.
        """
        extended = torch.cat((position_ids, torch.full_like(position_ids[..., :1], switch)), dim=-1)
        result = self._forward(x, extended, **kind)
        if isinstance(result, Tensor):
            return result[..., :-1, :]
        return tuple(part[..., :-1, :] for part in result)
