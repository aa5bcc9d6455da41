"""The drafter that a proposer is told to use: made, held against the model, and tried again
where its store cannot be read.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from paceline import datastore
from paceline.core.drafter import Drafter, check_vocabulary
from paceline.drafters import create
from paceline.errors import ConfigError, DatastoreError
from paceline.integrations.vllm.options import EngineFacts
from paceline.util.config import parse_spec
from paceline.util.limits import EMBEDDED

_RETRY = 30.0  # seconds until a store that could not be read is tried again


class Builder:
    """Makes the drafter of a spec.

    Args:
        facts: of the engine it has to fit.
    """

    def __init__(self, spec: str, facts: EngineFacts) -> None:
        self._spec, self._facts = spec, facts
        self._options = parse_spec(spec)[1]
        self._retry_at = 0.0

    def build(self) -> Drafter | None:
        """Make it; None while it is not yet time to try again.

        Raises:
            ConfigError: it cannot be made, or does not fit. DatastoreError: its store cannot be
                read.
        """
        now = time.monotonic()
        if now < self._retry_at:
            return None
        self._retry_at = now + _RETRY
        tokenizer = _tokenizer(self._facts) if "datastore" in self._options else None
        self._begin_store(tokenizer)
        drafter = create(self._spec)
        if drafter.needs_predictions or drafter.top_k:
            raise ConfigError(
                f"drafter {drafter.name!r}: got a drafter that learns from what the target says"
                " behind guesses; expected one that"
                " learns from text alone, as vLLM tells no more. Use sssd, prompt_lookup, pia or"
                " rest."
            )
        check_vocabulary(drafter, self._facts.vocab_size, tokenizer)
        try:
            drafter.check_tokenizer(tokenizer)
        except DatastoreError as error:
            raise ConfigError(str(error)) from error
        return drafter

    def store_tokens(self) -> int:
        """Return the tokens in the datastore; 0 without one.

        Raises:
            DatastoreError: it cannot be read.
        """
        path = self._options.get("datastore")
        return datastore.info(path).tokens if path else 0

    def _begin_store(self, tokenizer: Any) -> None:
        """Where finished answers are to go into a store that is not there, begin one: with one
        token, as none may be empty.
        """
        path = self._options.get("datastore", EMBEDDED)
        if (
            self._options.get("update_datastore", "").lower() in ("", "false", "0", "no", "off")
            or path == EMBEDDED
            or Path(path).exists()
        ):
            return
        first = min(self._facts.eos, default=0)
        datastore.build(path, [[first]], self._facts.vocab_size, tokenizer=tokenizer)


def _tokenizer(facts: EngineFacts) -> Any:
    """The tokenizer of the engine; None where there is none."""
    if facts.tokenizer is None:
        return None
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(facts.tokenizer, revision=facts.revision)
    except (
        OSError,
        ValueError,
        KeyError,
    ):  # one that only vLLM can load: its store is not held against it
        return None
