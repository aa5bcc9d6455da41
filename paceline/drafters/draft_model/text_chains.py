"""Draft chains with a different tokenizer (SLEM, Timor et al. 2025).

The text of a request is converted to the draft model's tokens, and the draft model continues it
greedily. The drafted text is then converted to the target's tokens (string-level exact match). The
target verifies these tokens like any other draft, so an inexact conversion cannot change the
answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedModel

from paceline.core.origin import Origin
from paceline.core.request import Request
from paceline.core.sampling_params import SamplingParams
from paceline.core.tree import DraftTree
from paceline.drafters.draft_model.options import DraftModelOptions
from paceline.drafters.draft_model.settings import DRAFT_TOKENS_PER_TOKEN, MAX_NODES
from paceline.drafters.shared.chain import Chain
from paceline.drafters.shared.chains import ChainDrafter, ChainSequence
from paceline.drafters.shared.draft_sequence import DraftSequence
from paceline.drafters.shared.ngram_index import NgramIndex
from paceline.drafters.shared.settings import ChainSettings
from paceline.model.cached_lm import CachedLM
from paceline.model.pairing import retokenizer_of
from paceline.model.vocabulary import SharedVocabulary
from paceline.text.retokenizer import RetokenizedText, Retokenizer

_SETTINGS = ChainSettings()


class TextChains(ChainDrafter):
    """Drafts one chain of text per request, always greedily.

    Args:
        options: Options of the drafter.
        draft: Draft model; the drafter uses a view of it with a separate KV cache.
    """

    keeps_tokens = True

    def __init__(self, options: DraftModelOptions, draft: CachedLM) -> None:
        spare = max(options.draft_limit, MAX_NODES)
        super().__init__(draft.apart(), options.length_rule(), "follow", False, spare)
        self._retokenizer: Retokenizer | None = None
        self._texts: dict[int, RetokenizedText] = {}

    def attach(self, target: PreTrainedModel, tokenizer: Any = None) -> None:
        """Prepare to convert text between the target's and the draft model's tokenizers."""
        rows = self._draft.architecture.vocab_size
        self._draft.share(SharedVocabulary(rows, rows, rows))
        self._retokenizer = retokenizer_of(self._draft.model, target, tokenizer)

    def start(self, request: Request) -> None:
        """Create the draft model's copy of the text, if it fits in the model's context."""
        assert self._retokenizer is not None, "the engine attaches the target first"
        text = RetokenizedText(self._retokenizer)
        ids = text.update(request.token_ids)
        capacity = min(
            self._draft.context_length, DRAFT_TOKENS_PER_TOKEN * request.max_length + self._spare
        )
        if not 0 < len(ids) < capacity or not self._retokenizer.readable(ids):
            return
        end = self._retokenizer.draft_end
        self._draft.reserve(0, capacity)
        shadow = Request(
            ids,
            SamplingParams(max_new_tokens=capacity - len(ids)),
            eos_token_ids=() if end is None else (end,),
        )
        DraftSequence.open_for(request, shadow, self._draft)
        self._texts[request.id] = text
        index = NgramIndex(_SETTINGS.min_lookup_ngram, _SETTINGS.max_lookup_ngram)
        self._shadows[request.id] = ChainSequence(shadow, 0, index, self._rule.length)

    def stop(self, request: Request) -> None:
        """Delete the draft model's copy of the text."""
        super().stop(request)
        self._texts.pop(request.id, None)

    def draws(self, request: Request) -> bool:
        """Return False, because text is always drafted greedily."""
        return False

    def propose(self, requests: Sequence[Request], max_nodes: list[int]) -> list[DraftTree]:
        """Draft for all requests at once, so they share the draft model's forward passes."""
        if any(max_nodes):  # otherwise, a later call reads the new tokens
            for request in requests:
                self._read(request)
        return super().propose(requests, max_nodes)

    def _read(self, request: Request) -> None:
        """Add the target's newest tokens to the draft model's copy of the request.

        The tokens are first converted to the draft model's tokens. If the draft model cannot
        continue the converted text, the copy is deleted.
        """
        sequence, text = self._shadows.get(request.id), self._texts.get(request.id)
        if sequence is None or text is None:
            return
        common, ids = text.final, text.update(request.token_ids)
        copy = sequence.request
        readable = self._retokenizer is not None and self._retokenizer.readable(ids)
        if not readable or len(ids) >= copy.max_length:
            self.stop(request)
            return
        while common < min(len(copy), len(ids)) and copy.token_ids[common] == ids[common]:
            common += 1
        self._draft.rewind(copy, min(common, len(ids) - 1))
        copy.token_ids[common:] = ids[common:]

    def _catch_up(self, request: Request) -> None:
        """Do nothing, because `propose` has already added the newest tokens."""

    def _limit(self, request: Request, limit: int) -> int:
        """Return the maximum draft length in tokens; 0 if the text ends mid-character."""
        sequence = self._shadows[request.id]
        if not self._texts[request.id].complete:
            return 0
        room = sequence.request.max_length - len(sequence.request)
        return min(sequence.length, limit, request.remaining - 1, room)

    def _new_chain(self, request: Request, shadow: ChainSequence, limit: int) -> Chain:
        return Chain(shadow.request, limit, limit > 0, False, shadow.request.eos_token_ids)

    def _as_tree(self, chain: Chain) -> DraftTree:
        """Return the drafted text as a chain of the target's tokens."""
        assert self._retokenizer is not None, "the engine attaches the target first"
        tokens = self._retokenizer.target_ids(chain.tokens)[: chain.limit]
        return DraftTree.chain(tokens, origins=[Origin.MODEL] * len(tokens))
