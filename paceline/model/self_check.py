"""A measurement instead of a hope: do this model's forwards over cached drafts equal its plain
forwards?

Architectures of the test-suite are known to; any other is measured once, when the engine is built.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from transformers import PreTrainedModel

from paceline.core.not_numbers import logits_error
from paceline.core.request import Request, SamplingParams
from paceline.core.tree import EMPTY_TREE, DraftTree
from paceline.errors import UnsupportedModelError
from paceline.model.cached_lm import CachedLM
from paceline.model.model_view import ModelView
from paceline.model.per_layer import layer_values

# transformers' model_type of the architectures in tests/model/test_architectures.py.
VERIFIED = frozenset(
    [
        "llama",
        "mistral",
        "mixtral",
        "qwen2",
        "qwen3",
        "qwen3_moe",
        "gemma",
        "gemma2",
        "gemma3_text",
        "gemma3",
        "phi",
        "phi3",
        "gpt2",
        "gpt_neox",
        "gptj",
        "opt",
        "falcon",
        "stablelm",
        "olmo2",
        "olmo3",
        "olmoe",
        "granite",
        "granitemoe",
        "cohere",
        "cohere2",
        "deepseek_v2",
        "deepseek_v3",
        "gpt_oss",
        "smollm3",
        "llama4_text",
        "llama4",
        "gpt_bigcode",
        "starcoder2",
        "bloom",
        "mpt",
        "nemotron",
        "exaone4",
        "ernie4_5",
        "glm4",
        "hunyuan_v1_dense",
        "seed_oss",
        "gemma4_text",
        "gemma4_unified_text",
    ]
)
_PARENTS = [-1, 0, -1, 2, 2]
_SIDE_BRANCH = [2, 4]  # of them
_CHAIN = [-1, 0, 1, 2]
_TEXT = 6  # tokens, behind the longest window that is tried
_LONGEST_WINDOW = 512
_WINDOWS = (
    "sliding_window",
    "attention_chunk_size",
    "window_size",
    "attention_window_size",
    "local_attention",
)


def checked_model(model: PreTrainedModel, options: Mapping[str, Any]) -> CachedLM:
    """Return a model whose forwards over drafts equal its plain ones: over trees, or where these
    fail over chains.

    Args:
        options: of `CachedLM`.
    Raises:
        UnsupportedModelError: neither are.
    """
    lm = CachedLM(model, **options)
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
    """Compare forwards over a small tree with plain ones, behind a cached prompt and again behind
    an accepted side branch.

    Raises:
        UnsupportedModelError: they differ by more than rounding, or the model cannot run the tree
            at all.
    """
    _check(model, "tree", _PARENTS, _SIDE_BRANCH)


def check_chain_forward(model: CachedLM) -> None:
    """Compare forwards over a few draft tokens in a row with plain ones, then again behind those
    that were accepted.

    Raises:
        UnsupportedModelError: as `check_tree_forward`.
    """
    _check(model, "chain", _CHAIN, [0, 1])


def _check(model: CachedLM, what: str, parents: list[int], accepted: list[int]) -> None:
    name, vocab = model.architecture.name, model.vocab_size
    text = [(7 * place + 3) % vocab for place in range(_text_length(model))]
    tree = DraftTree([(11 * node + 5) % vocab for node in range(len(parents))], parents)
    request = Request(text, SamplingParams())
    model.open(request)
    made, expected = [], []
    try:
        for _ in range(2):
            while not model.reaches_end(request):
                model.feed([request])
            made.append(model.forward([request], [tree])[0].float())
            expected.append(_plain_tree_logits(model, request.token_ids, tree))
            model.commit([accepted])
            request.token_ids += [*(tree.token_ids[node] for node in accepted), 2 % vocab]
    except Exception as error:  # whatever the code of a model that nobody here knows raises
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UnsupportedModelError(
            f"{name} cannot run a draft {what}: {reason}. Use model.generate for this model."
        ) from error
    finally:
        model.close(request)
    allowed = 1e-3 if model.architecture.dtype == torch.float32 else 0.1
    tree_logits, plain = torch.cat(made), torch.cat(expected)
    if plain.isnan().any():
        raise logits_error(model.architecture.dtype)
    scale = float(plain[plain.isfinite()].abs().max())
    # Vocabularies are padded with -inf, which is equal to itself.
    difference = float(torch.where(tree_logits == plain, 0.0, tree_logits - plain).abs().max())
    if not difference <= allowed * max(scale, 1e-6):
        raise UnsupportedModelError(
            f"{name}: logits of a draft {what} differ from plain ones by {difference:.2g} (scale"
            f" {scale:.2g}; rounding allows {allowed:g} of it), so verification would not be"
            " lossless. Use model.generate for this model."
        )


def _text_length(model: CachedLM) -> int:
    """Return the length of a text that goes beyond the windows in which layers attend, where
    these are not long.
    """
    config = model.model.config.get_text_config(decoder=True)
    sizes = [
        size for name in _WINDOWS for size in layer_values(config, name) if isinstance(size, int)
    ]
    longest = max((size for size in sizes if size <= _LONGEST_WINDOW), default=0)
    length = longest + _TEXT
    for switch in model.architecture.switch_lengths:
        if length <= switch < length + 4 * _TEXT:
            length = switch + 1  # all of the text has the same rotary frequencies
    return max(2, min(length, model.context_length - 4 * _TEXT))


def _plain_tree_logits(model: CachedLM, text: list[int], tree: DraftTree) -> torch.Tensor:
    """Return logits [1 + nodes, vocab] after a text and after every node behind it, by one plain
    forward per branch.
    """
    rows: dict[int, torch.Tensor] = {}
    for leaf in set(range(len(tree))) - set(tree.parents):
        path = tree.path(leaf)
        logits = plain_logits(
            model, [*text, *(tree.token_ids[node] for node in path)], 1 + len(path)
        )
        rows.update(zip([-1, *path], logits.float(), strict=True))
    return torch.stack([rows[node] for node in range(-1, len(tree))])


def plain_logits(model: CachedLM, token_ids: list[int], count: int = 1) -> torch.Tensor:
    """Return logits [count, vocab] after the last of `token_ids` by the model's own forward,
    without cache or mask.
    """
    tokens = torch.tensor([token_ids], device=model.device)
    kept = {"logits_to_keep": count} if model.architecture.takes_logits_to_keep else {}
    with model.mode():
        logits: torch.Tensor = (
            ModelView(model.model).module(input_ids=tokens, use_cache=False, **kept).logits
        )
    return logits[0, -count:]


@torch.inference_mode()
def count_differing_rows(alone: CachedLM, beside: CachedLM) -> tuple[int, int]:
    """Compare, bit for bit, the logits of short texts alone with those in a tree, beside another
    sequence.

    It sees what single modules do not show: attention that is not ours, or sums that run over rows.
    Where rotary frequencies depend on the length of the text, each of the two sequences is once a
    short text next to a long one.

    Args:
        alone, beside: the same model; `beside` with a prefill chunk under 20 tokens, so that it
            feeds the prompt in pieces.
    Returns:
        how many rows of logits differ, of how many.
    """
    lengths = [(0, 0), *((0, one + 1) for one in alone.architecture.switch_lengths)]
    found = [
        _rows_that_differ(alone, beside, *both)
        for both in {*lengths, *(both[::-1] for both in lengths)}
    ]
    return sum(differing for differing, _ in found), sum(count for _, count in found)


def _rows_that_differ(
    alone: CachedLM, beside: CachedLM, length: int, other_length: int
) -> tuple[int, int]:
    """Compare one sequence alone with the same next to another one.

    Args:
        length, other_length: of their texts, as far as rotary frequencies are concerned.
    """
    tokens = [(11 * place + 3) % alone.vocab_size for place in range(20)]
    tree = DraftTree(
        [(13 * node + 5) % alone.vocab_size for node in range(len(_PARENTS))], _PARENTS
    )
    request, one, other = (Request(tokens[:count], SamplingParams()) for count in (20, 20, 11))
    request.rotary_length = one.rotary_length = max(20, length)
    other.rotary_length = max(11, other_length)
    alone.open(request)
    expected = []
    for path in _paths(tree):
        alone.rewind(request, min(request.cached, len(tokens) + len(path) - 1))
        request.token_ids = [*tokens, *path]
        expected.append(alone.feed([request])[0, 0])
    alone.close(request)
    both = [one, other]
    for each in both:
        beside.open(each)
    while waiting := [each for each in both if not beside.reaches_end(each)]:
        beside.feed(waiting)
    logits = beside.forward(both, [tree, EMPTY_TREE])[0]
    for each in both:
        beside.close(each)
    differing = sum(
        not torch.equal(mine, theirs) for mine, theirs in zip(logits, expected, strict=True)
    )
    return differing, len(expected)


def _paths(tree: DraftTree) -> list[list[int]]:
    paths: list[list[int]] = [[]]  # the root, then every node
    for token, parent in zip(tree.token_ids, tree.parents, strict=True):
        paths.append([*paths[parent + 1], token])
    return paths
