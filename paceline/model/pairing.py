"""Prepare a draft model for its target, and attach the target's modules to it."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from transformers import AutoTokenizer, PreTrainedModel

from paceline.errors import ConfigError
from paceline.model.cached_lm import CachedLM
from paceline.model.eagle.modules import attach, uses_target_states
from paceline.model.token_map import TokenMap, map_tokens
from paceline.model.vocabulary import SharedVocabulary
from paceline.text.retokenizer import Retokenizer
from paceline.text.token_ids import TokenIds, difference, is_padded, size, token_ids_of

_HELP = (
    "Choose a draft model with the target's tokenizer, or a drafter that accepts others:"
    " draft_model:other_tokenizer=true or auto:other_tokenizer=true."
)


def pair(
    draft: CachedLM,
    target: PreTrainedModel,
    tokenizer: Any = None,
    other_tokenizer: bool = False,
) -> None:
    """Prepare a draft model for a target.

    Args:
        draft: Draft model. An EAGLE-style draft model receives the target's embedding and LM head.
        target: Target model.
        tokenizer: Tokenizer of the target; None means the tokenizer in the folder from which the
            target was loaded, if any.
        other_tokenizer: Whether the draft model may have a different tokenizer; default False.
    Raises:
        ConfigError: The vocabularies do not match (`shared_vocabulary`, `map_tokens`), the draft
            model was trained on another target's hidden states, or the draft model already serves a
            target with a different vocabulary.
        UnsupportedModelError: The draft model is EAGLE-style, and the target's embedding or LM
            head cannot be read.
    """
    attach(draft.model, target)
    if other_tokenizer and not uses_target_states(draft.model):
        draft.share(_token_map(draft.model, target, tokenizer))
    else:
        draft.share(shared_vocabulary(draft.model, target, tokenizer))


def _token_map(draft: PreTrainedModel, target: PreTrainedModel, tokenizer: Any) -> TokenMap:
    """Return a map from the target's token ids to those of a draft model."""
    return map_tokens(*_tokenizers_and_rows(draft, target, tokenizer))


def retokenizer_of(draft: PreTrainedModel, target: PreTrainedModel, tokenizer: Any) -> Retokenizer:
    """Return a converter between the token ids of a draft model and of its target."""
    return Retokenizer(*_tokenizers_and_rows(draft, target, tokenizer))


def _tokenizers_and_rows(
    draft: PreTrainedModel, target: PreTrainedModel, tokenizer: Any
) -> tuple[Any, Any, int, int]:
    """Return the tokenizers of target and draft model, then their vocabulary sizes."""
    embedding: Any = draft.get_input_embeddings()
    return (
        _tokenizer_of(target) if tokenizer is None else tokenizer,
        _tokenizer_of(draft),
        vocabulary_size(target),
        min(vocabulary_size(draft), getattr(embedding, "num_embeddings", vocabulary_size(draft))),
    )


def shared_vocabulary(
    draft: PreTrainedModel, target: PreTrainedModel, tokenizer: Any = None
) -> SharedVocabulary:
    """Return the token ids that a draft model and its target share.

    Args:
        draft: Draft model. Its tokenizer, if any, is the tokenizer in the folder from which the
            draft model was loaded.
        target: Target model.
        tokenizer: Tokenizer of the target; None means the tokenizer in the folder from which the
            target was loaded, if any.
    Raises:
        ConfigError: The tokenizers differ, or a tokenizer is unknown and the vocabulary sizes
            differ by more than padding.
    """
    target_rows, draft_rows = vocabulary_size(target), vocabulary_size(draft)
    target_ids = _tokenizer_ids(target) if tokenizer is None else token_ids_of(tokenizer)
    draft_ids = _tokenizer_ids(draft)
    if (
        target_ids is not None
        and draft_ids is not None
        and (conflict := difference(draft_ids, target_ids)) is not None
    ):
        raise ConfigError(
            f"draft model: got a tokenizer in which {conflict[0]}; expected {conflict[1]}, as in"
            f" the target's. {_HELP}"
        )
    known_sizes = [size(ids) for ids in (target_ids, draft_ids) if ids is not None]
    padded = len(known_sizes) == 2 or any(
        is_padded(target_rows, known) and is_padded(draft_rows, known) for known in known_sizes
    )
    # An EAGLE-style draft model was trained on the target's own ids.
    if target_rows != draft_rows and not padded and not uses_target_states(draft):
        raise ConfigError(
            f"draft model: got a vocabulary of {draft_rows} tokens; expected {target_rows}, as in"
            " the target. The sizes may differ only by padding, and only if the tokenizers are"
            f" known. {_HELP}"
        )
    embedding: Any = draft.get_input_embeddings()
    return SharedVocabulary(
        min(target_rows, draft_rows, *known_sizes),
        target_rows,
        getattr(embedding, "num_embeddings", target_rows),
    )


def vocabulary_size(model: PreTrainedModel) -> int:
    """Return the number of rows in a model's LM head, from its configuration."""
    return int(model.config.get_text_config(decoder=True).vocab_size)


def _tokenizer_ids(model: PreTrainedModel) -> TokenIds | None:
    """Return the ids of the tokenizer in a model's folder or cached repository.

    The result is None if there is no tokenizer.
    """
    source = getattr(model, "name_or_path", None)
    return _ids_in(str(source)) if source else None


@lru_cache(maxsize=2)  # several engines for the same pair of models
def _ids_in(source: str) -> TokenIds | None:
    tokenizer = _load_tokenizer(source)
    return None if tokenizer is None else token_ids_of(tokenizer)


def _tokenizer_of(model: PreTrainedModel) -> Any:
    """Return the tokenizer in a model's folder or cached repository, or None."""
    source = getattr(model, "name_or_path", None)
    return _load_tokenizer(str(source)) if source else None


def _load_tokenizer(source: str) -> Any:
    try:
        return AutoTokenizer.from_pretrained(source, local_files_only=True)
    except Exception:  # the libraries raise many types for a missing or damaged tokenizer
        return None
