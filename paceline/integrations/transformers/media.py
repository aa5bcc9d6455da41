"""Process the prompts of a `generate` call with images, videos or audio."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor

from paceline.core.media import Media
from paceline.errors import ConfigError
from paceline.integrations.transformers.request import GenerateCall
from paceline.integrations.transformers.rows import RowRequest
from paceline.model.cached_lm import CachedLM
from paceline.model.media_prefill import placeholder_ids


def attach_media(model: CachedLM, request: GenerateCall, rows: Sequence[RowRequest]) -> None:
    """Run the model's own prefill, and store each row's keys, values and states.

    The prefill covers all tokens of a row except the last, whose logits paceline computes. A row
    with a single token contains only text.

    Args:
        model: Model of the call.
        request: Checked arguments of the call, with media.
        rows: Rows in batch order.
    Raises:
        ConfigError: A row ends with a placeholder, or the model rejects the inputs.
        UnsupportedModelError: The model cannot store its states after an image.
    """
    assert request.media is not None, "called for calls with media"
    placeholders = placeholder_ids(model.model.config)
    for row in rows:
        if row.token_ids[-1] in placeholders:
            raise ConfigError(
                f"input_ids: row {row.place} ends with an image, video or audio; expected text"
                " after it. Add some, such as a question."
            )
    with model.mode():
        first = np.array([row.padding for row in rows], dtype=np.int64)
        prefilled = model.media_prefill.run_as_generate(request.input_ids, request.media, first)
    offsets = _offsets_of(request.media.get("position_ids"), rows) or prefilled.offsets
    for row, offset in zip(rows, offsets, strict=True):
        if len(row) == 1:
            continue
        states = prefilled.states(row.place, row.padding, request.width - 1)
        states = replace(states, position_offset=offset)
        tensors = {
            name: value for name, value in request.media.items() if isinstance(value, Tensor)
        }
        # Rows share no keys with other requests, so that the digest only has to be unique.
        row.media = Media(tensors, len(row) - 1, str(row.id).encode(), states)


def _offsets_of(positions: Any, rows: Sequence[RowRequest]) -> list[int]:
    """Return each row's position offset; an empty list if no positions were passed.

    Args:
        positions: Positions prepared by `generate`, [rows, columns], possibly with a leading
            dimension.
        rows: Rows in batch order.
    """
    if not isinstance(positions, Tensor):
        return []
    last = positions[-1, :, -1] if positions.dim() > 2 else positions[:, -1]
    return [
        int(position) - (len(row) - 1)
        for position, row in zip(last.expand(len(rows)).tolist(), rows, strict=True)
    ]
