"""Prepare a draft model for its target: the vocabulary they share, and what a draft borrows from
its target.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from transformers import AutoTokenizer, PreTrainedModel

from paceline.errors import ConfigError
from paceline.model.cached_lm import CachedLM
from paceline.model.eagle.modules import attach, uses_target_states
from paceline.model.vocabulary import SharedVocabulary
from paceline.text.token_ids import TokenIds, difference, is_padded, size, token_ids_of

_HELP = "Choose a draft model of the target's family, one with the target's tokenizer."


def pair(draft: CachedLM, target: PreTrainedModel, tokenizer: Any = None) -> None:
    """Prepare a draft model for a target.

    Args:
        draft: the draft model. One that reads the target's states gets the target's embedding and
            LM head.
        target: the target.
        tokenizer: the target's; None = the one in the folder it was loaded from, if any.
    Raises:
        ConfigError: as `shared_vocabulary`; the draft reads another target's states; or it serves a
            target with another vocabulary.
        UnsupportedModelError: a target whose embedding and head cannot be read, for a draft that
            reads its states.
    """
    attach(draft.model, target)
    draft.share(shared_vocabulary(draft.model, target, tokenizer))


def shared_vocabulary(
    draft: PreTrainedModel, target: PreTrainedModel, tokenizer: Any = None
) -> SharedVocabulary:
    """Find the ids that a draft model and its target share.

    Args:
        draft: the draft model. Its tokenizer is the one in the folder it was loaded from, if any.
        target: the target.
        tokenizer: the target's; None = the one in the folder the target was loaded from, if any.
    Raises:
        ConfigError: the tokenizers differ, or the sizes differ by more than padding where a
            tokenizer is not known.
    """
    rows, own_rows = vocabulary_size(target), vocabulary_size(draft)
    theirs = _ids_beside(target) if tokenizer is None else token_ids_of(tokenizer)
    ours = _ids_beside(draft)
    if (
        theirs is not None
        and ours is not None
        and (conflict := difference(ours, theirs)) is not None
    ):
        raise ConfigError(
            f"draft model: got a tokenizer in which {conflict[0]}; expected {conflict[1]}, as in"
            f" the target's. {_HELP}"
        )
    known = [size(one) for one in (theirs, ours) if one is not None]
    padded = len(known) == 2 or any(
        is_padded(rows, one) and is_padded(own_rows, one) for one in known
    )
    if (
        rows != own_rows and not padded and not uses_target_states(draft)
    ):  # which was trained on the target's own ids
        raise ConfigError(
            f"draft model: got a vocabulary of {own_rows} tokens; expected {rows}, the target's, or"
            " the same tokenizer under another padding, which the known tokenizers do not show."
            f" {_HELP}"
        )
    embedding: Any = draft.get_input_embeddings()
    return SharedVocabulary(
        min(rows, own_rows, *known), rows, getattr(embedding, "num_embeddings", rows)
    )


def vocabulary_size(model: PreTrainedModel) -> int:
    """Return the rows of a model's LM head, by its configuration."""
    return int(model.config.get_text_config(decoder=True).vocab_size)


def _ids_beside(model: PreTrainedModel) -> TokenIds | None:
    """Return the ids of the tokenizer in the folder or cached repository that a model was loaded
    from; None without one.
    """
    source = getattr(model, "name_or_path", None)
    return _ids_in(str(source)) if source else None


@lru_cache(maxsize=2)  # engines for the same pair
def _ids_in(source: str) -> TokenIds | None:
    try:
        return token_ids_of(AutoTokenizer.from_pretrained(source, local_files_only=True))
    except (
        Exception
    ):  # the libraries raise plain ones for what is damaged or not there; then it is not known
        return None
