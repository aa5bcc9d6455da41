"""Which tokenizer the ids of a store belong to."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

from paceline.errors import ConfigError

_FINGERPRINT = re.compile(r"sha256:[0-9a-f]{64}")


def fingerprint_of(tokenizer: Any) -> str | None:
    """Return `sha256:...` over the vocabulary, the merges and the added tokens: equal where every
    id means the same text.

    Args:
        tokenizer: of transformers, or of tokenizers; a fingerprint is returned as it is, None too.
            What a tokenizer does besides (padding, truncation, special tokens around a text) is
            left out.
    Raises:
        ConfigError: something else came.
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
        whole = json.loads(backend.to_str())
        content: Any = {
            "model": whole["model"],
            "added": sorted(
                (token["id"], token["content"]) for token in whole.get("added_tokens") or ()
            ),
        }
    elif hasattr(tokenizer, "get_vocab"):
        content = sorted((number, token) for token, number in tokenizer.get_vocab().items())
    else:
        raise ConfigError(
            f"tokenizer: got an object that is none, as {type(tokenizer).__name__} has no"
            " vocabulary; expected one of transformers or tokenizers. Load it first."
        )
    return "sha256:" + hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
