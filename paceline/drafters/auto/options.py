"""Define and validate the options of the `auto` drafter."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.drafters.auto.settings import MAX_NODES
from paceline.drafters.shared.table_settings import LONGEST_KEY
from paceline.util.config import require_range


@dataclass(frozen=True, slots=True)
class AutoOptions:
    """Options of `auto`, which merges several draft sources into one tree.

    Attributes:
        datastore: Folder of a datastore; "demo" is the datastore for the built-in target. By
            default, the drafter searches only the request and earlier answers.
        max_context_ngram: Maximum number of tokens in the context of a cached next-token
            distribution (Token Recycling); at least 1, default 3.
        max_nodes: Maximum number of nodes in a draft tree, from 1 to 256. Defaults to 48, or to 16
            if budget=false. With budget=false, the trees of a batch have at most 48 nodes in total.
        budget: Verify only the nodes that are expected to save time; default true.
        min_path_probability: Propose nodes only if their path probability reaches this number; from
            0 to 1, default 0.001.
        answer_cache_tokens: Maximum number of tokens from recent answers that are cached and
            searched; 0 disables the cache. Defaults to 262144, or to 0 if update_datastore=true.
        update_datastore: Append finished answers to the datastore; default false. If the datastore
            does not exist, the drafter creates an empty one.
        use_draft_model: Use the draft model, if any, as an additional source. Unless budget=false,
            the draft model runs only while it saves time. Defaults to true.
        use_grammar: Draft the tokens that a request's grammar forces; default true.
        draft_head: Predict the next tokens from the target's hidden state; false disables the
            head. To use a trained head, pass the path of a file written by `paceline draft-head
            train`. Defaults to true.
        state_head: Folder or hub id of an EAGLE-3 or DFlash head. `auto` uses this head instead of
            a draft model. "mtp" selects the MTP layer in the target's checkpoint. Unless
            budget=false, the head runs only while it saves time.
        pool_file: File in which the cached distributions are saved between runs. If the file
            exists, the drafter loads it. By default, the distributions are not saved.
        other_tokenizer: Accept a draft model with a different tokenizer. The drafter converts the
            drafted text, or drafts only tokens that are in both vocabularies. Defaults to false.
    """

    datastore: str | None = None
    max_context_ngram: int = 3
    max_nodes: int | None = None
    budget: bool = True
    min_path_probability: float = 0.001
    answer_cache_tokens: int | None = None
    update_datastore: bool = False
    use_draft_model: bool = True
    use_grammar: bool = True
    draft_head: bool | str = True
    state_head: str | None = None
    pool_file: str | None = None
    other_tokenizer: bool = False

    def __post_init__(self) -> None:
        require_range("auto", "max_context_ngram", self.max_context_ngram, 1, LONGEST_KEY)
        require_range("auto", "min_path_probability", self.min_path_probability, 0, 1)
        if self.max_nodes is not None:
            require_range("auto", "max_nodes", self.max_nodes, 1, MAX_NODES)
