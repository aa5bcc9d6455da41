"""Compute prompts with images, videos or audio using the model's own `forward`.

A placeholder is a token that stands for an image, video or audio clip. The model processes the
tokens up to the last placeholder in one forward pass, with the model's own masks and positions.
Then, paceline's forward passes continue from the resulting keys and values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import DynamicCache, PretrainedConfig, PreTrainedModel

from paceline.attention import BY_POSITION
from paceline.core.media import Media, PrefixStates
from paceline.core.not_numbers import logits_error
from paceline.core.request import Request
from paceline.core.tree import IntArray
from paceline.errors import ConfigError, UnsupportedModelError
from paceline.kv_cache.state_layer import StateKind
from paceline.model.forward_arguments import GENERATE_CACHE, forward_parameters
from paceline.model.media_states import RecurrentPrefill
from paceline.model.model_view import ModelView
from paceline.model.settings import FLOAT32_TOLERANCE, HALF_TOLERANCE

# Arguments that carry images, videos or audio, by the beginning of their names.
MEDIA_ARGUMENTS = ("pixel_values", "input_features", "input_values", "images")
_PLACEHOLDERS = tuple(
    f"{kind}_token_{end}" for kind in ("image", "video", "audio") for end in ("id", "index")
)
_RECORDERS = "_output_capturing_hooks_installed"
_OFFSETS = "rope_deltas"  # set by models with 3-D positions


def takes_media(model: PreTrainedModel) -> bool:
    """Return whether a model's `forward` accepts images, videos or audio."""
    return any(name.startswith(MEDIA_ARGUMENTS) for name in forward_parameters(model))


def placeholder_ids(config: PretrainedConfig) -> frozenset[int]:
    """Return the ids of the placeholder tokens for images, videos and audio."""
    ids = (getattr(config, name, None) for name in _PLACEHOLDERS)
    return frozenset(token for token in ids if token is not None)


@dataclass(frozen=True, slots=True)
class Prefilled:
    """Result of the model's own forward pass over prompts.

    Attributes:
        logits: Logits of all columns or of the last one, [rows, columns, vocab].
        cache: Keys and values of all tokens.
        offsets: Position offset of each row: the position of any later token minus the token's
            index.
        recurrent: Recurrent states before the last token of each row; None if the model has no
            recurrent states.
    """

    logits: Tensor
    cache: DynamicCache
    offsets: list[int]
    recurrent: RecurrentPrefill | None

    def states(self, row: int, first: int, stop: int) -> PrefixStates:
        """Return the keys, values and recurrent states of one row's prefix.

        Args:
            row: Index of the row.
            first: Column of the row's first token; padding precedes it.
            stop: Column of the row's last token, which the states do not include.
        """
        return PrefixStates(
            [
                None
                if getattr(layer, "keys", None) is None
                else (layer.keys[row, :, first:stop], layer.values[row, :, first:stop])
                for layer in self.cache.layers
            ],
            self.offsets[row],
            self.logits[row, -1],
            {} if self.recurrent is None else self.recurrent.states(row),
        )


class MediaPrefill:
    """Runs a model's own `forward` over prompts with images, videos or audio.

    The class calls a `ModelView`, which is a copy of the model with shared weights, torch's matrix
    products and the model's own attention. `forward` sets attributes, such as position offsets,
    only in the copy, so other calls of the model do not see these attributes.

    Args:
        model: Loaded model.
        states: Kind of recurrent state in each recurrent layer, by layer index.
    """

    def __init__(self, model: PreTrainedModel, states: Mapping[int, StateKind]) -> None:
        self._model, self._states = model, states
        self._view: ModelView | None = None
        self._checked: set[frozenset[str]] = set()  # names of tensors of the checked prompts

    def states(self, request: Request) -> PrefixStates:
        """Compute the keys, values and states of the tokens up to the last placeholder.

        Args:
            request: Request with images, videos or audio. A text token must follow the last
                placeholder.
        Raises:
            ConfigError: The model rejects the request's images, videos or audio.
            UnsupportedModelError: The model's recurrent states are inside attention layers.
        """
        media = request.media
        assert media is not None, "called for requests with media"
        if media.states is not None:
            return media.states
        count = media.end + 1  # the logits after the next token serve as a check
        device = self._model.device
        tensors = media.first_columns(count, request.prompt_length)
        inputs: dict[str, Any] = {
            "input_ids": torch.tensor([request.token_ids[:count]], device=device),
            "attention_mask": torch.ones(1, count, dtype=torch.int64, device=device),
            **self._accepted(tensors),
        }
        if "logits_to_keep" in forward_parameters(self._model):
            inputs["logits_to_keep"] = 1
        return self._run(inputs, np.zeros(1, dtype=np.int64)).states(0, 0, media.end)

    def _run(self, inputs: dict[str, Any], first: IntArray) -> Prefilled:
        """Run the model's forward method on prompts.

        Args:
            inputs: Arguments of the forward method, without the cache.
            first: Column of each row's first token, which follows the padding, [rows].
        Raises:
            ConfigError: The model rejects the inputs.
            UnsupportedModelError: The model's recurrent states are inside attention layers.
        """
        module = self._fresh_module()
        assert self._view is not None, "made for the module"
        recurrent = self._recurrent(first, inputs["input_ids"].shape[1])
        # Without the configuration, layers with a window keep all keys.
        cache = DynamicCache() if recurrent is None else recurrent.cache
        self._view.state.recurrent = None if recurrent is None else recurrent.current
        _copy_flags(self._model, module)
        try:
            output = module(**inputs, **{self._view.cache_argument: cache}, use_cache=True)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # the model's code checks its inputs in many ways
            reason = " ".join(str(error).split()) or type(error).__name__
            raise ConfigError(
                f"images: {self._model.__class__.__name__} got tensors that it rejects ({reason});"
                " expected those of the model's processor for this prompt. Check the number of"
                " images and placeholders."
            ) from error
        finally:
            _copy_flags(module, self._model)
            self._view.state.recurrent = None
        if recurrent is not None:
            recurrent.commit()
        return Prefilled(output.logits, cache, _offsets(module, inputs, first), recurrent)

    def _recurrent(self, first: IntArray, columns: int) -> RecurrentPrefill | None:
        """Set up the recurrent layers for a forward pass; return None if there are none."""
        if not self._states:
            return None
        view, name = self._view, self._model.__class__.__name__
        assert view is not None, "made for the module"
        if not view.has_mixers or any(kind.has_keys for kind in self._states.values()):
            raise UnsupportedModelError(
                f"{name} has recurrent states inside attention layers, which cannot be stored after"
                " an image; expected a prompt of text. Use model.generate for this prompt."
            )
        num_layers = view.config.num_hidden_layers
        return RecurrentPrefill(self._states, num_layers, first, columns, view.state.folds)

    def run_as_generate(
        self, input_ids: Tensor, arguments: dict[str, Any], first: IntArray
    ) -> Prefilled:
        """Run the model's forward method with the arguments of `generate`'s first step.

        Args:
            input_ids: Token ids with padding, [rows, columns].
            arguments: Arguments that `generate` has prepared for the forward method.
            first: Column of each row's first token, which follows the padding, [rows].
        Raises:
            ConfigError: The model rejects the inputs.
            UnsupportedModelError: The model's recurrent states are inside attention layers.
        """
        given = {**arguments, GENERATE_CACHE: DynamicCache(), "use_cache": True}
        module: Any = self._fresh_module()
        inputs = module.prepare_inputs_for_generation(input_ids, is_first_iteration=True, **given)
        others = {
            name: value
            for name, value in inputs.items()
            if name not in (GENERATE_CACHE, "use_cache")
        }
        return self._run(others, first)

    def check_next_token(self, request: Request, states: PrefixStates, logits: Tensor) -> None:
        """Compare paceline's logits after one token with the model's own logits.

        Args:
            request: Request with images, videos or audio.
            states: Keys and values of the request's first tokens, and the model's own logits after
                the next token.
            logits: Logits after this token from paceline's forward pass, [vocab].
        Raises:
            UnsupportedModelError: The logits differ by more than rounding errors.
        """
        assert request.media is not None, "called for requests with media"
        assert states.logits is not None, "see `needs_check`"
        expected, actual = states.logits.float(), logits.float()
        if expected.isnan().any():
            raise logits_error(self._model.dtype)
        tolerance = FLOAT32_TOLERANCE if self._model.dtype == torch.float32 else HALF_TOLERANCE
        scale = float(expected[expected.isfinite()].abs().max())
        difference = float(torch.where(actual == expected, 0.0, actual - expected).abs().max())
        if not difference <= tolerance * max(scale, 1e-6):
            raise UnsupportedModelError(
                f"{self._model.__class__.__name__} cannot continue after images: logits differ from"
                f" its own by {difference:.2g} (scale {scale:.2g}; rounding allows"
                f" {tolerance:g} of it). Use model.generate for such prompts."
            )
        self._checked.add(frozenset(request.media.tensors))

    def needs_check(self, media: Media, states: PrefixStates) -> bool:
        """Return True if this combination of media kinds has not been checked yet.

        The result is False if there are no logits to compare with.
        """
        return states.logits is not None and frozenset(media.tensors) not in self._checked

    def _fresh_module(self) -> nn.Module:
        if self._view is None or self._view.stale:
            self._view = ModelView(self._model)
            if self._view.config._attn_implementation == BY_POSITION:
                self._view.config._attn_implementation = "sdpa"
        module: nn.Module = self._view.module
        for part in module.modules():
            if getattr(part, _OFFSETS, None) is not None:
                setattr(part, _OFFSETS, None)
        return module

    def _accepted(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the tensors that `forward` accepts, on the model's device.

        Images, videos and audio are converted to the model's dtype. Other tensors, such as time
        intervals between video frames, keep their dtype.
        """
        accepted, floats = forward_parameters(self._model), torch.Tensor.is_floating_point
        return {
            name: tensor.to(
                self._model.device,
                self._model.dtype if name.startswith(MEDIA_ARGUMENTS) and floats(tensor) else None,
            )
            for name, tensor in tensors.items()
            if name in accepted
        }


def _copy_flags(source: nn.Module, target: nn.Module) -> None:
    """Copy the flags that mark a model's output recorders as installed.

    Output recorders are hooks that transformers installs in a model's first forward pass. A model
    and its view share the hooks, so only one of them may install them.
    """
    for part, other in zip(source.modules(), target.modules(), strict=True):
        if isinstance(part, PreTrainedModel):
            setattr(other, _RECORDERS, getattr(part, _RECORDERS, False))


def _offsets(module: Any, inputs: dict[str, Any], first: IntArray) -> list[int]:
    """Return the position offset of each row after the forward pass.

    The offset is the position of any later token minus the token's index. As in `generate`, the
    position of the prompt's last token determines the offset. The model's own offset
    (`rope_deltas`) continues after the largest position, which may belong to a video.

    Args:
        module: View that has run the forward pass.
        inputs: Arguments of the forward pass.
        first: Column of each row's first token, which follows the padding, [rows].
    """
    positions = inputs.get("position_ids")
    has_offsets = any(getattr(part, _OFFSETS, None) is not None for part in module.modules())
    if positions is None and has_offsets:
        others = {name: value for name, value in inputs.items() if name != "input_ids"}
        positions = module._prepare_position_ids_for_generation(inputs["input_ids"], others)
    if positions is None:
        return [0] * len(first)
    last = (positions[-1] if positions.dim() > 2 else positions)[:, -1].expand(len(first))
    indices = inputs["input_ids"].shape[1] - 1 - first
    return [int(position) - int(index) for position, index in zip(last, indices, strict=True)]
