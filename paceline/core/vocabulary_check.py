"""Check that a drafter and a target have the same vocabulary."""

from __future__ import annotations

from typing import Any

from paceline.core.drafter import Drafter
from paceline.errors import ConfigError
from paceline.text.token_ids import is_padded, size, token_ids_of


def check_vocabulary(drafter: Drafter, vocab: int, tokenizer: Any = None) -> None:
    """Check the drafter's vocabulary against the target's, once per engine.

    Args:
        drafter: Drafter to check.
        vocab: Number of tokens in the target's vocabulary.
        tokenizer: Tokenizer of the prompts, if known.
    Raises:
        ConfigError: The vocabulary sizes differ, or the drafter may propose ids outside the
            target's vocabulary. The message states both sizes. `Drafter.check_vocab_size`, which
            this function calls, may raise the error as well.
    """
    if drafter.ids_below > vocab and not _differ_by_padding(drafter.ids_below, vocab, tokenizer):
        raise ConfigError(
            f"drafter {drafter.name!r}: got draft tokens from a vocabulary of {drafter.ids_below}"
            f" tokens; expected at most {vocab}, the target's. Use a datastore built with the"
            " target's tokenizer."
        )
    if drafter.vocab_size not in (None, vocab):
        raise ConfigError(
            f"drafter {drafter.name!r}: got a vocabulary of {drafter.vocab_size} tokens; expected"
            f" {vocab}, the target's. Choose a draft model of the target's family."
        )
    drafter.check_vocab_size(vocab, tokenizer)


def _differ_by_padding(first: int, second: int, tokenizer: Any) -> bool:
    known = token_ids_of(tokenizer)
    return known is not None and is_padded(first, size(known)) and is_padded(second, size(known))
