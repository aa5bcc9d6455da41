"""Rotary frequencies that depend on the length of the text: LongRoPE and dynamic NTK.

transformers chooses the frequencies of a whole forward by the largest position in it. Our forwards
hold draft tokens, several requests and parts of prompts, so each token brings the text length that
its own frequencies follow.
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
    """The text lengths that the frequencies of the forward under way follow.

    Attributes:
        of_tokens: [rows, columns]; None = the largest position of the forward counts, as in
            transformers.
    """

    def __init__(self) -> None:
        self.of_tokens: IntArray | None = None

    def set(
        self, requests: Sequence[Request], positions: IntArray, counts: IntArray | None = None
    ) -> None:
        """Set the lengths of one forward.

        Args:
            requests: the requests of the forward.
            positions: [rows, columns], of the tokens in their texts.
            counts: [sequences], the tokens of each where all share one row; None = one row per
                sequence.
        """
        least = np.array([request.rotary_length for request in requests], dtype=np.int64)
        rows = least[:, None] if counts is None else np.repeat(least, counts)[None]
        self.of_tokens = np.maximum(rows, positions + 1)


def switch_lengths(config: PretrainedConfig) -> tuple[int, ...]:
    """Return the text lengths beyond which a model uses other frequencies, ascending.

    Dynamic NTK has none: it changes beyond `max_position_embeddings`, which is the longest text the
    engine takes.
    """
    return tuple(
        sorted({switch for one in _parameters(config) if (switch := _switch(one)) is not None})
    )


def _parameters(config: PretrainedConfig) -> Iterable[dict[str, Any]]:
    """Return the rotary parameters of a model: one set, or one per kind of layer."""
    known = getattr(config, "rope_parameters", None) or {}
    return [one for one in known.values() if isinstance(one, dict)] or [known]


def _switch(parameters: dict[str, Any]) -> int | None:
    return int(parameters[_SWITCH]) if parameters.get("rope_type") == "longrope" else None


def restart_length(model: PreTrainedModel, config: PretrainedConfig) -> int | None:
    """Return the length beyond which `model.generate` feeds a growing text anew, with the other
    frequencies; None = never.

    Raises:
        UnsupportedModelError: it does so at another length than the one at which the frequencies
            change, or it has a rotary embedding that is not transformers' own.
    """
    switches = switch_lengths(config)
    if not switches:
        return None
    if not any(is_length_dependent(module) for module in model.modules()):
        raise UnsupportedModelError(
            f"{type(model).__name__} has LongRoPE frequencies in a rotary embedding of its own;"
            " expected transformers', which can be given the length of each text. Use"
            " model.generate for this model."
        )
    other = getattr(config, _SWITCH, None)
    found = [
        length
        for length in {*switches, *([other] if other else [])}
        if _starts_anew(model, int(length))
    ]
    if found and (len(switches) > 1 or found != [*switches]):
        raise UnsupportedModelError(
            f"{type(model).__name__} changes its rotary frequencies beyond"
            f" {', '.join(map(str, switches))} tokens, and its generate starts again beyond"
            f" {', '.join(map(str, found))}; expected one length for both. Correct {_SWITCH} in the"
            " model's config."
        )
    return found[0] if found else None


class _Filled(DynamicCache):  # type: ignore[misc]
    """A cache that claims to hold tokens."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self._length = length

    def __len__(self) -> int:
        return 1

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self._length


def _starts_anew(model: PreTrainedModel, length: int) -> bool:
    """Whether `generate` drops a cache of `length` tokens when one more is there."""
    cache, ids = _Filled(length), torch.zeros(1, length + 1, dtype=torch.int64)
    options = {"next_sequence_length": 1, "use_cache": True, GENERATE_CACHE: cache}
    prepared = model.prepare_inputs_for_generation(ids, **options)
    return prepared.get(GENERATE_CACHE) is not cache


def same_rotary_frequencies(one: Request, other: Request, switches: tuple[int, ...]) -> bool:
    """Whether the first tokens of two sequences have the same frequencies, so that their keys
    can be shared.
    """
    return all(
        (one.rotary_length > switch) == (other.rotary_length > switch) for switch in switches
    )


def cut_at_switch(tree: DraftTree, request: Request, switch: int) -> DraftTree:
    """Return a draft without the tokens that would come beyond the switch: they need other keys
    of the text before.
    """
    if request.rotary_length > switch or len(request) + len(tree) <= switch:
        return tree
    return tree.above(switch - len(request) + 1)


def restart_beyond_switch(request: Request, switch: int) -> None:
    """Have a sequence that has grown beyond the switch fed again from its first token."""
    if request.finish_reason is None and request.rotary_length <= switch < len(request):
        request.rotary_length, request.cached = len(request), 0


def is_length_dependent(module: nn.Module) -> bool:
    """Whether a module is a rotary embedding whose frequencies depend on the length of the text."""
    kinds = getattr(module, "rope_type", None)
    return any(
        kind == "longrope" or "dynamic" in kind
        for kind in (kinds.values() if isinstance(kinds, dict) else [kinds or ""])
    )


def use_token_frequencies(twin: nn.Module, lengths: TextLengths) -> None:
    """Give a copy of a rotary embedding frequencies that nobody else changes, chosen for each
    token by the lengths given.
    """
    own = vars(twin)
    buffers = {name: None if one is None else one.clone() for name, one in twin._buffers.items()}
    for name, now in buffers.items():
        first = getattr(twin, _first(name), None)
        if now is not None and isinstance(first, Tensor):
            # a longer text may have been there before
            buffers[name] = first.detach().clone().to(now.device)
    own["_buffers"] = buffers
    for name in [name for name in own if name.endswith("max_seq_len_cached")]:
        own[name] = own["original_max_seq_len"]
    forward = own.get("forward") or MethodType(type(twin).forward, twin)
    own["forward"] = _ByToken(twin, forward, lengths)


def _first(name: str) -> str:
    """Return the name of the frequencies that `name` had at load, as of `inv_freq` or
    `full_attention_inv_freq`.
    """
    return name.removesuffix("inv_freq") + "original_inv_freq" if name.endswith("inv_freq") else ""


class _ByToken:
    """The forward of a rotary embedding: each token gets the frequencies of its own length."""

    def __init__(self, twin: nn.Module, forward: Any, lengths: TextLengths) -> None:
        self._config: PretrainedConfig = vars(twin)["config"]
        self._forward, self._lengths = forward, lengths

    def __call__(self, x: Tensor, position_ids: Tensor, layer_type: str | None = None) -> Any:
        """Return cosines and sines, or what the model has in their place: tensors [..., rows,
        columns, n].
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
        beyond = self._long(x, position_ids, switch, kind)
        if long.all():
            return beyond
        which = torch.from_numpy(long[..., None]).to(position_ids.device, non_blocking=True)
        within = self._short(x, position_ids, switch, kind)
        if isinstance(beyond, Tensor):
            return torch.where(which, beyond, within)
        return tuple(
            torch.where(which, one, other) for one, other in zip(beyond, within, strict=True)
        )

    def _short(self, x: Tensor, position_ids: Tensor, switch: int, kind: dict[str, str]) -> Any:
        return self._forward(x, position_ids.clamp(max=switch - 1), **kind)

    def _long(self, x: Tensor, position_ids: Tensor, switch: int, kind: dict[str, str]) -> Any:
        """Return the same with a column more, at a position beyond the switch, which is then
        taken away.
        """
        more = torch.cat((position_ids, torch.full_like(position_ids[..., :1], switch)), dim=-1)
        made = self._forward(x, more, **kind)
        if isinstance(made, Tensor):
            return made[..., :-1, :]
        return tuple(one[..., :-1, :] for one in made)
