"""A measurement instead of a hope: does this model's forward over a cached tree equal its plain forwards?

Architectures of the test-suite are known to; any other is measured once, when the engine is built.
"""

from __future__ import annotations

import torch

from paceline.engine.model import CachedLM
from paceline.engine.sequence import SamplingParams, Sequence
from paceline.engine.tree import EMPTY_TREE, DraftTree
from paceline.engine.view import ModelView
from paceline.errors import UnsupportedModelError

# transformers' model_type of the architectures in tests/engine/test_architectures.py.
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
    ]
)
_PARENTS = [-1, 0, -1, 2, 2]


def check_if_unknown(model: CachedLM, model_type: str) -> None:
    """`check_tree_forward`, for a model that takes trees and whose architecture is not in the table.

    Raises:
        UnsupportedModelError: as `check_tree_forward`.
    """
    if model.takes_trees and model_type not in VERIFIED:
        check_tree_forward(model)


def check_tree_forward(model: CachedLM) -> None:
    """Compare one forward over a small tree, behind a cached prompt, with a plain forward per branch.

    Raises:
        UnsupportedModelError: they differ by more than rounding, or the model cannot run the tree at all.
    """
    vocab = model.vocab_size
    prompt = [(7 * place + 3) % vocab for place in range(6)]
    tree = DraftTree([(11 * node + 5) % vocab for node in range(len(_PARENTS))], _PARENTS)
    try:
        in_tree = _logits(model, prompt, tree)
        alone = torch.stack([plain_logits(model, prompt + path).float() for path in _paths(tree)])
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        raise UnsupportedModelError(
            f"{model.architecture.name} cannot run a draft tree: {error}. Use model.generate for this model."
        ) from error
    allowed = 1e-3 if model.architecture.dtype == torch.float32 else 0.1
    scale = float(alone.abs().max())
    difference = float((in_tree - alone).abs().max())
    if not difference <= allowed * max(scale, 1e-6):
        raise UnsupportedModelError(
            f"{model.architecture.name}: logits of a draft tree differ from plain ones by {difference:.2g} (scale"
            f" {scale:.2g}; rounding allows {allowed:g} of it), so verification would not be lossless. Use"
            " model.generate for this model."
        )


@torch.inference_mode()
def plain_logits(model: CachedLM, token_ids: list[int]) -> torch.Tensor:
    """Return logits [vocab] after `token_ids` by the model's own forward, without cache, mask or positions."""
    tokens = torch.tensor([token_ids], device=model.device)
    logits: torch.Tensor = ModelView(model.model).module(input_ids=tokens, use_cache=False).logits
    return logits[0, -1]


@torch.inference_mode()
def rows_that_differ(alone: CachedLM, beside: CachedLM) -> tuple[int, int]:
    """Compare, bit for bit, the logits of short texts alone with those in a tree, beside another sequence.

    It sees what single modules do not show: attention that is not ours, or sums that run over rows. Where rotary frequencies
    depend on the length of the text, each of the two sequences is once a short text next to a long one.

    Args:
        alone, beside: the same model; `beside` with a prefill chunk under 20 tokens, so that it feeds the prompt in pieces.
    Returns:
        how many rows of logits differ, of how many.
    """
    lengths = [(0, 0), *((0, one + 1) for one in alone.architecture.switch_lengths)]
    found = [_rows_that_differ(alone, beside, *both) for both in {*lengths, *(both[::-1] for both in lengths)}]
    return sum(differing for differing, _ in found), sum(count for _, count in found)


def _rows_that_differ(alone: CachedLM, beside: CachedLM, length: int, other_length: int) -> tuple[int, int]:
    """Compare one sequence alone with the same next to another one.

    Args:
        length, other_length: of their texts, as far as rotary frequencies are concerned.
    """
    tokens = [(11 * place + 3) % alone.vocab_size for place in range(20)]
    tree = DraftTree([(13 * node + 5) % alone.vocab_size for node in range(len(_PARENTS))], _PARENTS)
    seq, one, other = (Sequence(tokens[:count], SamplingParams()) for count in (20, 20, 11))
    seq.rotary_length = one.rotary_length = max(20, length)
    other.rotary_length = max(11, other_length)
    alone.open(seq)
    expected = []
    for path in _paths(tree):
        alone.rewind(seq, min(seq.cached, len(tokens) + len(path) - 1))
        seq.token_ids = [*tokens, *path]
        expected.append(alone.feed([seq])[0, 0])
    alone.close(seq)
    both = [one, other]
    for each in both:
        beside.open(each)
    while waiting := [each for each in both if not beside.reaches_end(each)]:
        beside.feed(waiting)
    logits = beside.forward(both, [tree, EMPTY_TREE])[0]
    for each in both:
        beside.close(each)
    differing = sum(not torch.equal(mine, theirs) for mine, theirs in zip(logits, expected, strict=True))
    return differing, len(expected)


def _paths(tree: DraftTree) -> list[list[int]]:
    paths: list[list[int]] = [[]]  # the root, then every node
    for token, parent in zip(tree.token_ids, tree.parents, strict=True):
        paths.append([*paths[parent + 1], token])
    return paths


def _logits(model: CachedLM, token_ids: list[int], tree: DraftTree) -> torch.Tensor:
    seq = Sequence(token_ids[:-1], SamplingParams())
    model.open(seq)
    try:
        model.feed([seq])
        seq.token_ids.append(token_ids[-1])
        return model.forward([seq], [tree])[0].float()
    finally:
        model.close(seq)
