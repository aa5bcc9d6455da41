"""Check at load time that forward passes over draft trees match plain ones.

Architectures covered by the test suite are known to pass. Any other architecture is checked once,
when the engine is built.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers import DynamicCache, PreTrainedModel

from paceline.core.not_numbers import logits_error
from paceline.core.request import Request
from paceline.core.sampling_params import SamplingParams
from paceline.core.tree import EMPTY_TREE, DraftTree
from paceline.errors import UnsupportedModelError
from paceline.model.cached_lm import CachedLM
from paceline.model.model_view import ModelView
from paceline.model.per_layer import layer_values
from paceline.model.row_check import check_rows
from paceline.model.settings import (
    CHECK_TEXT_TOKENS,
    CHECKED_CHAIN,
    CHECKED_CHAIN_PATH,
    CHECKED_PATH,
    CHECKED_TREE,
    FLOAT32_TOLERANCE,
    HALF_TOLERANCE,
    MAX_CHECKED_WINDOW,
)
from paceline.model.verified import VERIFIED

_WINDOWS = (
    "sliding_window",
    "attention_chunk_size",
    "window_size",
    "attention_window_size",
    "local_attention",
)


def checked_model(model: PreTrainedModel, options: Mapping[str, Any]) -> CachedLM:
    """Wrap a model so that it verifies trees or, if trees fail a check, only chains.

    Args:
        model: Loaded model.
        options: Arguments for `CachedLM`.
    Raises:
        UnsupportedModelError: Forward passes over chains fail the check too, or rows depend on one
            another.
    """
    lm = CachedLM(model, **options)
    check_rows(model)
    if model.config.model_type in VERIFIED:
        return lm
    if not lm.takes_trees:
        check_chain_forward(lm)
        return lm
    try:
        check_tree_forward(lm)
    except UnsupportedModelError:
        chains = None if lm.architecture.by_position else CachedLM(model, **options, chains=True)
        if chains is None or not _passes_as_chain(chains):
            raise
        return chains
    return lm


def _passes_as_chain(model: CachedLM) -> bool:
    try:
        check_chain_forward(model)
    except UnsupportedModelError:
        return False
    return True


def check_tree_forward(model: CachedLM) -> None:
    """Compare forward passes over a small draft tree with plain forward passes.

    In the first comparison, the tree follows a cached prompt. In the second comparison, the tree
    follows an accepted side branch.

    Args:
        model: Model to check.
    Raises:
        UnsupportedModelError: The logits differ by more than rounding errors, or the model cannot
            run the tree at all.
    """
    _check(model, "tree", CHECKED_TREE, CHECKED_PATH)


def check_chain_forward(model: CachedLM) -> None:
    """Compare forward passes over a chain of draft tokens with plain forward passes.

    In the first comparison, the chain follows a cached prompt. In the second comparison, the chain
    follows accepted draft tokens.

    Args:
        model: Model to check.
    Raises:
        UnsupportedModelError: The logits differ by more than rounding errors, or the model cannot
            run the chain at all.
    """
    _check(model, "chain", CHECKED_CHAIN, CHECKED_CHAIN_PATH)


def _check(model: CachedLM, shape: str, parents: Sequence[int], accepted: Sequence[int]) -> None:
    name, vocab = model.architecture.name, model.vocab_size
    text = [(7 * index + 3) % vocab for index in range(_text_length(model))]
    tree = DraftTree([(11 * node + 5) % vocab for node in range(len(parents))], list(parents))
    request = Request(text, SamplingParams())
    model.open(request)
    tree_rows, plain_rows = [], []
    try:
        for _ in range(2):
            while not request.ends_prefill(model.prefill_chunk):
                model.feed([request])
            tree_rows.append(model.forward([request], [tree])[0].float())
            plain_rows.append(_plain_tree_logits(model, request, tree))
            model.commit([accepted])
            request.token_ids += [*(tree.token_ids[node] for node in accepted), 2 % vocab]
    except Exception as error:  # unknown model code may raise any type
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UnsupportedModelError(
            f"{name} cannot run a draft {shape}: {reason}. Use model.generate for this model."
        ) from error
    finally:
        model.close(request)
    is_float32 = model.architecture.dtype == torch.float32
    allowed = FLOAT32_TOLERANCE if is_float32 else HALF_TOLERANCE
    tree_logits, plain = torch.cat(tree_rows), torch.cat(plain_rows)
    if plain.isnan().any():
        raise logits_error(model.architecture.dtype)
    scale = float(plain[plain.isfinite()].abs().max())
    # Padded vocabularies have logits of -inf, whose differences would be NaN.
    difference = float(torch.where(tree_logits == plain, 0.0, tree_logits - plain).abs().max())
    if not difference <= allowed * max(scale, 1e-6):
        raise UnsupportedModelError(
            f"{name}: logits of a draft {shape} differ from plain ones by {difference:.2g} (scale"
            f" {scale:.2g}; rounding allows {allowed:g} of it), so verification would not be"
            " lossless. Use model.generate for this model."
        )


def _text_length(model: CachedLM) -> int:
    """Return a number of tokens that exceeds all windows up to MAX_CHECKED_WINDOW."""
    config = model.model.config.get_text_config(decoder=True)
    sizes = [
        size for name in _WINDOWS for size in layer_values(config, name) if isinstance(size, int)
    ]
    max_window = max((size for size in sizes if size <= MAX_CHECKED_WINDOW), default=0)
    length = max_window + CHECK_TEXT_TOKENS
    for switch in model.architecture.switch_lengths:
        if length <= switch < length + 4 * CHECK_TEXT_TOKENS:
            length = switch + 1  # so that the whole text has the same rotary frequencies
    return max(2, min(length, model.context_length - 4 * CHECK_TEXT_TOKENS))


def _plain_tree_logits(model: CachedLM, request: Request, tree: DraftTree) -> torch.Tensor:
    """Return the logits after a text and after each node of its draft tree.

    The logits have the shape [1 + nodes, vocab]. Each branch takes one plain forward pass. If the
    model has recurrent states, it decodes the branch token by token instead, as in `generate`.
    """
    rows: dict[int, torch.Tensor] = {}
    for leaf in set(range(len(tree))) - set(tree.parents):
        path = tree.path(leaf)
        text = [*request.token_ids, *(tree.token_ids[node] for node in path)]
        if model.keeps_states:
            logits = _decoded_logits(model, text, request.prompt_length)[-1 - len(path) :]
        else:
            logits = plain_logits(model, text, 1 + len(path))
        rows.update(zip([-1, *path], logits.float(), strict=True))
    return torch.stack([rows[node] for node in range(-1, len(tree))])


def _decoded_logits(model: CachedLM, text: list[int], prompt_length: int) -> torch.Tensor:
    """Return logits [n, vocab] after the prompt and after each later token.

    Args:
        model: Model to run.
        text: Token ids.
        prompt_length: Number of tokens in the first forward pass; the others are processed one by
            one.
    """
    view = ModelView(model.model)
    tokens = torch.tensor([text], device=model.device)
    positions = torch.arange(len(text), device=model.device)[None]
    options: dict[str, Any] = {view.cache_argument: DynamicCache(config=model.model.config)}
    rows, first = [], 0
    with model.mode():
        for stop in range(prompt_length, len(text) + 1):
            if model.architecture.takes_position_ids:
                options["position_ids"] = positions[:, first:stop]
            output = view.module(input_ids=tokens[:, first:stop], use_cache=True, **options)
            rows.append(output.logits[0, -1])
            first = stop
    return torch.stack(rows)


def plain_logits(model: CachedLM, token_ids: list[int], count: int = 1) -> torch.Tensor:
    """Return logits [count, vocab] after the last tokens, from a plain forward pass.

    The forward pass uses neither cache nor mask.

    Args:
        model: Model to run.
        token_ids: Token ids of the text.
        count: Number of tokens, counted from the end.
    """
    tokens = torch.tensor([token_ids], device=model.device)
    options = {"logits_to_keep": count} if model.architecture.takes_logits_to_keep else {}
    with model.mode():
        logits: torch.Tensor = (
            ModelView(model.model).module(input_ids=tokens, use_cache=False, **options).logits
        )
    return logits[0, -count:]


@torch.inference_mode()
def count_differing_rows(alone: CachedLM, batched: CachedLM) -> tuple[int, int]:
    """Compare, bit for bit, the logits of short texts alone and in a batch.

    The batch contains two requests, of which the first has a draft tree. The function compares the
    logits of this request with those that the model computes for the request alone. The comparison
    finds faults that do not show in individual modules, for example in the model's attention code
    or in sums over rows.

    If rotary frequencies depend on the text length, the function also compares batches in which one
    of the two requests uses the frequencies of a long text.

    Args:
        alone: Model that decodes one request at a time.
        batched: The same model with a prefill chunk below 20 tokens, so that it uses chunked
            prefill.
    Returns:
        The number of differing rows of logits, and the number of rows compared.
    """
    lengths = [(0, 0), *((0, switch + 1) for switch in alone.architecture.switch_lengths)]
    results = [
        _compare_rows(alone, batched, *pair)
        for pair in {*lengths, *(pair[::-1] for pair in lengths)}
    ]
    return sum(differing for differing, _ in results), sum(count for _, count in results)


def _compare_rows(
    alone: CachedLM, batched: CachedLM, length: int, other_length: int
) -> tuple[int, int]:
    """Compare the logits of a request decoded alone and decoded in a batch of two.

    Args:
        alone: Model that decodes one request at a time.
        batched: The same model, which decodes a batch.
        length: Text length that determines the request's rotary frequencies.
        other_length: Text length that determines the other request's rotary frequencies.
    """
    tokens = [(11 * index + 3) % alone.vocab_size for index in range(20)]
    parents = CHECKED_TREE if batched.takes_trees else CHECKED_CHAIN
    tree = DraftTree(
        [(13 * node + 5) % alone.vocab_size for node in range(len(parents))], list(parents)
    )
    request, first, other = (Request(tokens[:count], SamplingParams()) for count in (20, 20, 11))
    request.rotary_length = first.rotary_length = max(20, length)
    other.rotary_length = max(11, other_length)
    alone.open(request)
    expected = []
    for path in _paths(tree):
        alone.rewind(request, min(request.cached, len(tokens) + len(path) - 1))
        request.token_ids = [*tokens, *path]
        expected.append(alone.feed([request])[0, 0])
    alone.close(request)
    batch = [first, other]
    for item in batch:
        batched.open(item)
    while waiting := [item for item in batch if not item.ends_prefill(batched.prefill_chunk)]:
        batched.feed(waiting)
    logits = batched.forward(batch, [tree, EMPTY_TREE])[0]
    for item in batch:
        batched.close(item)
    differing = sum(
        not torch.equal(row, expected_row)
        for row, expected_row in zip(logits, expected, strict=True)
    )
    return differing, len(expected)


def _paths(tree: DraftTree) -> list[list[int]]:
    paths: list[list[int]] = [[]]  # the root, then every node
    for token, parent in zip(tree.token_ids, tree.parents, strict=True):
        paths.append([*paths[parent + 1], token])
    return paths
