"""Create a proposer's drafter, and retry if its datastore cannot be read."""

from __future__ import annotations

import time
from typing import Any

from paceline import datastore
from paceline.core.drafter import Drafter
from paceline.core.vocabulary_check import check_vocabulary
from paceline.drafters import create
from paceline.errors import ConfigError, DatastoreError
from paceline.integrations.vllm.options import EngineFacts
from paceline.integrations.vllm.settings import ProposerSettings
from paceline.util.config import parse_spec

_SETTINGS = ProposerSettings()


class Builder:
    """Creates a drafter from its spec.

    Args:
        spec: Drafter spec.
        facts: Properties of the engine that the drafter must match.
    """

    def __init__(self, spec: str, facts: EngineFacts) -> None:
        self._spec, self._facts = spec, facts
        self._options = parse_spec(spec)[1]
        self._retry_at = 0.0

    def build(self) -> Drafter | None:
        """Create the drafter; return None if an earlier attempt failed recently.

        Raises:
            ConfigError: The drafter cannot be created or does not match the engine.
            DatastoreError: The datastore cannot be read.
        """
        now = time.monotonic()
        if now < self._retry_at:
            return None
        self._retry_at = now + _SETTINGS.retry_seconds
        tokenizer = _tokenizer(self._facts) if "datastore" in self._options else None
        drafter = create(self._spec)
        if drafter.needs_predictions or drafter.top_k:
            raise ConfigError(
                f"drafter {drafter.name!r} needs the target's predictions, which vLLM does not pass"
                " to drafters. Use sssd, prompt_lookup, pia or rest."
            )
        check_vocabulary(drafter, self._facts.vocab_size, tokenizer)
        try:
            drafter.check_tokenizer(tokenizer)
        except DatastoreError as error:
            raise ConfigError(str(error)) from error
        return drafter

    def store_tokens(self) -> int:
        """Return the number of tokens in the datastore, or 0 if there is no datastore.

        Raises:
            DatastoreError: The datastore cannot be read.
        """
        path = self._options.get("datastore")
        return datastore.info(path).tokens if path else 0


def _tokenizer(facts: EngineFacts) -> Any:
    """Load the engine's tokenizer, or return None if it cannot be loaded."""
    if facts.tokenizer is None:
        return None
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(facts.tokenizer, revision=facts.revision)
    except (OSError, ValueError, KeyError):  # the datastore's tokenizer is not checked
        return None
