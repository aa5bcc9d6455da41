"""Define the contract between drafters and the engine.

A new drafting method is a subclass of `Drafter` that implements `propose`. The method must follow
these rules, which `verification.tree_rules` or a test enforces:

1. Return one tree per request, in order. Tree i has at most `max_nodes[i]` nodes; with the limit 0,
   the tree is empty.
2. In every tree, `parents[i] < i`, and siblings have different tokens. Probes (`DraftTree.probes`)
   come last in a tree, and may have the same token as a sibling.
3. `probs[i]` is the distribution from which node i was sampled, given the node's ancestors and
   earlier siblings (renormalised, as for sampling without replacement). Among siblings, sampled
   nodes come first.
4. A drafter may choose how many tokens to sample, but must not discard a token it has sampled.
5. If `DraftTree.leaf_first` is true, sample the tree with new random numbers in every step.

A wrong draft costs time but never changes the answer. Drafters have no access to caches, masks or
batched tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from paceline.core.node_rule import NodeRule
from paceline.core.request import Request
from paceline.core.tree import EMPTY_TREE, DraftTree, IntArray
from paceline.errors import ConfigError, DrafterError

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(slots=True)
class TopTokens:
    """The target's k most likely tokens after the root and every node in a tree.

    Attributes:
        token_ids: [1 + n, k] for a tree of n nodes, most likely tokens first. Row 0 contains the
            tokens after the root; row 1 + i contains the tokens after node i.
        probs: Probabilities of these tokens, float32 [1 + n, k]: the softmax of the model's own
            logits (temperature 1, no penalties). In a replay of recorded answers, the rows of
            nodes that are not accepted contain zeros, both here and in `token_ids`.
    """

    token_ids: IntArray
    probs: npt.NDArray[np.float32]

    def of(self, rows: Sequence[int]) -> TopTokens:
        """Return the tokens of the given rows, in the given order."""
        return TopTokens(self.token_ids[rows], self.probs[rows])

    def first(self, count: int) -> TopTokens:
        """Return the `count` most likely tokens of each row."""
        return TopTokens(self.token_ids[:, :count], self.probs[:, :count])


@dataclass(slots=True)
class Outcome:
    """Result of verifying one draft tree.

    Attributes:
        request: Request for which the tree was drafted.
        tree: Verified tree.
        accepted: Nodes on the accepted path, in order.
        new_token_ids: Tokens appended to the request: the accepted tokens, then a bonus token that
            the target chose. Nothing follows the token that ends the request.
        target_argmax: The target's most likely token after the root and after each node.
        target_top: The target's most likely tokens after the root and each node, if the drafter
            sets `top_k`.
        logprobs: For each new token, a dictionary from token ids to log-probabilities, most likely
            first; None if the request does not ask for log-probabilities.
        head_draft: Draft tree for the tokens after the newest token, from the draft head that
            reads hidden states. None unless the drafter requested such a tree (`num_head_tokens`).
        unclean: Whether the target's logits were NaN or infinite after at least one node;
            `target_argmax` is 0 after such nodes.
    """

    request: Request
    tree: DraftTree
    accepted: list[int]
    new_token_ids: list[int]
    target_argmax: list[int]
    target_top: TopTokens | None = None
    logprobs: list[dict[int, float]] | None = None
    head_draft: DraftTree | None = None
    unclean: bool = False

    @property
    def seq(self) -> Request:
        """Return `request`, under a shorter name for use in drafters."""
        return self.request


class Drafter:
    """Base class of drafting methods.

    Attributes:
        name: Name shown in messages and tables.
        vocab_size: Vocabulary size of the drafter's own model; None if there is no such model. The
            engine rejects a target with a different size.
        ids_below: Upper bound (exclusive) on the proposed token ids; 0 if it is unknown. A target
            with a smaller vocabulary is rejected, unless the two sizes differ only by padding.
        columns: Number of tree branches that copies of the target can compute in parallel
            (`paceline.engine.parallel`).
        node_rule: Limits on the number of draft nodes (`paceline.core.node_rule`).
        budget: Whether the engine cuts trees to the nodes that save more time than they cost
            (`paceline.draft_budget.budget`). If so, the drafter's trees should carry `confidence`
            and list the most likely paths first.
        top_k: Number of the target's most likely tokens that outcomes report per node; 0 for none.
        learns_at_rest: Whether outcomes also report top tokens while the engine pauses the drafter
            for many steps.
        needs_predictions: Whether the drafter learns from `target_argmax` at rejected nodes.
            Recorded answers lack these values.
        draft_head: File with a trained draft head, for drafters that request tokens with
            `num_head_tokens`. None selects the model's default head.
        needs_draft_model: Class attribute: whether `build` requires a draft model.
        takes_draft_model: Class attribute: whether `build` can use a draft model but does not
            require one.
        needs_trained: Class attribute: whether the drafter needs a file that was trained or built
            for the models in use.
        needs_store: Class attribute: whether the option `datastore` must name a token store.
        keeps_tokens: Class attribute: whether the drafter never changes `Request.token_ids`. If so,
            the engine does not check the tokens after each call. Subclasses do not inherit the
            value.
    """

    name: str = "drafter"
    vocab_size: int | None = None
    ids_below: int = 0
    columns: int = 1
    node_rule: NodeRule = NodeRule()
    budget: bool = False
    top_k: int = 0
    learns_at_rest: bool = True
    needs_predictions: bool = False
    draft_head: str | None = None
    needs_draft_model: ClassVar[bool] = False
    takes_draft_model: ClassVar[bool] = False
    needs_trained: ClassVar[bool] = False
    needs_store: ClassVar[bool] = False
    keeps_tokens: ClassVar[bool] = False

    def check_vocab_size(self, vocab_size: int, tokenizer: Any = None) -> None:
        """Check that all proposed ids are valid for a target with `vocab_size` tokens.

        Args:
            vocab_size: Number of rows in the target's LM head.
            tokenizer: Tokenizer of the prompts, if known. Data created with the same tokenizer is
                valid regardless of vocabulary padding.
        Raises:
            ConfigError: The drafter's data belongs to a different vocabulary; the message states
                both sizes.
        """

    def check_tokenizer(self, tokenizer: Any) -> None:
        """Check that the drafter's token ids belong to a given transformers tokenizer.

        The engine calls this method once, during construction.

        Raises:
            DatastoreError, ConfigError: The ids come from a different tokenizer; the message states
                both fingerprints.
        """

    def attach(self, target: PreTrainedModel, tokenizer: Any = None) -> None:
        """Prepare the drafter for its target model.

        Args:
            target: Model that verifies the drafts.
            tokenizer: Tokenizer of the prompts, if known.
        Raises:
            ConfigError, UnsupportedModelError: The drafter cannot be used with this target.
        """

    def num_head_tokens(self) -> int:
        """Return the number of tokens that the hidden-state draft head should propose.

        The head drafts from the target's hidden state after the next forward pass
        (`paceline.draft_head`). For a small model, each token costs about 2 % of a forward pass.
        The engine caps the number at `DraftHead.levels`. 0 disables the head.
        """
        return 0

    def start(self, request: Request) -> None:
        """Allocate the drafter's state for a new request; its prompt is already known.

        A drafter that needs the target's hidden states sets `request.states` to a
        `HiddenStateLog`. The engine then appends to the log in every step.
        """

    def propose(self, requests: Sequence[Request], max_nodes: list[int]) -> list[DraftTree]:
        """Return one draft tree per request.

        Args:
            requests: Requests in the next forward pass of the target.
            max_nodes: For each request, the maximum number of nodes that the target will verify.
        Returns:
            One tree per request, in order; a tree may be empty.
        """
        raise NotImplementedError

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        """Learn from verified trees; the requests already contain their new tokens."""

    def draws(self, request: Request) -> bool:
        """Return whether drafts for `request` carry their sampling distributions.

        Such drafts affect the generated text, so they must not depend on measured times.
        """
        return False

    def stop(self, request: Request) -> None:
        """Free the state of a request that has finished or been aborted."""

    @property
    def forward_seconds(self) -> float:
        """Total seconds spent in forward passes of the drafter's own model."""
        return 0.0


class Plain(Drafter):
    """Proposes no drafts, so the target decodes one token per step."""

    name = "none"
    keeps_tokens = True

    def propose(self, requests: Sequence[Request], max_nodes: list[int]) -> list[DraftTree]:
        """Return one empty tree per request."""
        return [EMPTY_TREE] * len(requests)


def require_drafter(where: str, drafter: object) -> None:
    """Check that an argument is a `Drafter`.

    Args:
        where: Name of the argument, for the message.
        drafter: Value to check.
    Raises:
        ConfigError: `drafter` is not a `Drafter`.
    """
    if not isinstance(drafter, Drafter):
        raise ConfigError(
            f"{where}: got {drafter!r}; expected a Drafter object. Make one with"
            " paceline.drafters.create('name')."
        )


def copied_tokens(drafter: Drafter, requests: Sequence[Request]) -> list[list[int]] | None:
    """Copy the requests' tokens before a drafter call, for `check_tokens`.

    Returns:
        Tokens of each request; None if the drafter's class sets `keeps_tokens`.
    """
    if type(drafter).__dict__.get("keeps_tokens", False):
        return None
    return [request.token_ids[:] for request in requests]


def check_tokens(
    drafter: Drafter, requests: Sequence[Request], before: list[list[int]] | None
) -> None:
    """Check that a drafter call left the requests' tokens unchanged.

    Args:
        drafter: Drafter that was called.
        requests: Requests passed to the call.
        before: Result of `copied_tokens` before the call.
    Raises:
        DrafterError: The drafter changed `token_ids`, which would corrupt the answer.
    """
    if before is None:
        return
    for request, tokens in zip(requests, before, strict=True):
        if request.token_ids != tokens:
            raise DrafterError(
                f"drafter {drafter.name!r}: got changed token_ids of request {request.id};"
                " expected them unchanged. Copy the list before changing it."
            )
