"""Process `generate` prompts that contain images, videos or audio."""

from __future__ import annotations

from collections.abc import Sequence

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

    The prefill covers all tokens of a row except the last, whose logits paceline computes. For a
    row with a single token, the function stores nothing.

    Args:
        model: Model that the call runs.
        request: Validated arguments of the call, including images, videos or audio.
        rows: Rows in batch order.
    Raises:
        ConfigError: A row ends with a placeholder, or the model rejects the inputs.
        UnsupportedModelError: The model's recurrent states are inside attention layers, so they
            cannot be stored after an image.
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
    for row in rows:
        if len(row) == 1:
            continue
        states = prefilled.states(row.place, row.padding, request.width - 1)
        tensors = {
            name: value for name, value in request.media.items() if isinstance(value, Tensor)
        }
        # No other request reuses the keys of these rows, so the digest only has to be unique.
        row.media = Media(tensors, len(row) - 1, str(row.id).encode(), states)
