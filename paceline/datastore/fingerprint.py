"""Identify the tokenizer with which a store was built."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

from paceline.errors import ConfigError

_FINGERPRINT = re.compile(r"sha256:[0-9a-f]{64}")


def fingerprint_of(tokenizer: Any) -> str | None:
    """Return the SHA-256 fingerprint of a tokenizer's vocabulary.

    The fingerprint covers the vocabulary, the merges and the added tokens. Tokenizers with the
    same fingerprint map every id to the same text. Settings for padding, truncation and special
    tokens have no effect.

    Args:
        tokenizer: Tokenizer of the transformers or tokenizers library. A fingerprint or None is
            returned unchanged.
    Raises:
        ConfigError: The argument is not a tokenizer.
    """
    if tokenizer is None:
        return None
    if isinstance(tokenizer, str):
        if not _FINGERPRINT.fullmatch(tokenizer):
            raise ConfigError(
                f"tokenizer: got the text {tokenizer!r}; expected a tokenizer or its fingerprint"
                " 'sha256:...'. Load it first."
            )
        return tokenizer
    backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
    if hasattr(backend, "to_str"):
        description = json.loads(backend.to_str())
        content: Any = {
            "model": description["model"],
            "added": sorted(
                (token["id"], token["content"]) for token in description.get("added_tokens") or ()
            ),
        }
    elif hasattr(tokenizer, "get_vocab"):
        content = sorted((number, token) for token, number in tokenizer.get_vocab().items())
    else:
        raise ConfigError(
            f"tokenizer: got an object without a vocabulary, {type(tokenizer).__name__};"
            " expected a tokenizer of transformers or tokenizers. Load it first."
        )
    return "sha256:" + hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
