"""Test DFlash heads: block outputs, draft trees, batches and refused configurations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from paceline import LLM, SamplingParams
from paceline.errors import ConfigError
from paceline.state_heads.dflash import DFlashHead, DFlashModule
from paceline.state_heads.find import find_head
from paceline.state_heads.layer_configs import layer_config
from paceline.state_heads.text import ROOT, HeadNode
from tests.support.shared import Pair
from tests.support.state_heads import (
    layer_settings,
    normed,
    rotated,
    vocabulary_maps,
    weights_of,
    write_head,
)

BLOCK, MASK_TOKEN, WINDOW = 5, 255, 6
KEPT = list(range(3, 203, 2))
LENGTH = 13
SLIDING = {
    "num_hidden_layers": 2,
    "layer_types": ["full_attention", "sliding_attention"],
    "use_sliding_window": True,
    "sliding_window": WINDOW,
}


def dflash_folder(target: Any, folder: Path, reduced: bool = True, **changes: Any) -> str:
    """Write a random head in the format of speculators or, unless `reduced`, of the authors."""
    settings = layer_settings(target, "qwen3", **changes)
    torch.manual_seed(4)
    module = DFlashModule(layer_config(settings), 2 * target.config.hidden_size)
    with torch.no_grad():
        for weight in module.parameters():
            weight.add_(0.2 * torch.randn(weight.shape))
    weights = weights_of(module)
    if not reduced:
        nested = {"mask_token_id": MASK_TOKEN, "target_layer_ids": [0, 0]}
        shape = {"architectures": ["DFlashDraftModel"], "block_size": BLOCK}
        return write_head(folder, {**settings, **shape, "dflash_config": nested}, weights)
    config = {
        "speculators_model_type": "dflash",
        "block_size": BLOCK,
        "mask_token_id": MASK_TOKEN,
        "aux_hidden_state_layer_ids": [0, 1],
        "draft_vocab_size": len(KEPT),
        "transformer_layer_config": settings,
    }
    rows = torch.randn(len(KEPT), target.config.hidden_size) / 8
    maps = vocabulary_maps(target.config.vocab_size, KEPT)
    return write_head(folder, config, {**weights, **maps, "lm_head.weight": rows})


def loaded(target: Any, folder: str) -> DFlashHead:
    head = find_head(folder)
    assert isinstance(head, DFlashHead)
    head.attach(target)
    return head


def reference(weights: dict[str, Tensor], joined: Tensor, embedded: Tensor, layers: int) -> Tensor:
    """Return the block's outputs, [block, hidden], computed from the paper's formulas.

    The last of two layers has sliding-window attention.
    """
    context = normed(joined @ weights["fc.weight"].T, weights["hidden_norm.weight"])
    count, hidden = len(context), embedded
    positions = torch.arange(count + BLOCK)
    for index in range(layers):
        layer = {name.removeprefix(f"layers.{index}."): weight for name, weight in weights.items()}

        def heads(rows: Tensor, name: str, layer: dict[str, Tensor] = layer) -> Tensor:
            return (rows @ layer[f"self_attn.{name}_proj.weight"].T).view(len(rows), -1, 16)

        inputs = normed(hidden, layer["input_layernorm.weight"])
        both = torch.cat((context, inputs))
        queries = normed(heads(inputs, "q"), layer["self_attn.q_norm.weight"])
        keys = normed(heads(both, "k"), layer["self_attn.k_norm.weight"])
        queries, keys = rotated(queries, positions[count:]), rotated(keys, positions)
        keys, values = (part.repeat_interleave(2, dim=1) for part in (keys, heads(both, "v")))
        scores = torch.einsum("qhd,khd->hqk", queries, keys) / 4
        if index == 1:
            seen = torch.ones(BLOCK, count + BLOCK, dtype=torch.bool).tril(count)
            seen[:, : max(0, count - WINDOW)] = False
            scores = scores.masked_fill(~seen, -torch.inf)
        attended = torch.einsum("hqk,khd->qhd", scores.softmax(-1), values).flatten(1)
        hidden = hidden + attended @ layer["self_attn.o_proj.weight"].T
        inputs = normed(hidden, layer["post_attention_layernorm.weight"])
        gate, up = (inputs @ layer[f"mlp.{name}_proj.weight"].T for name in ("gate", "up"))
        hidden = hidden + (functional.silu(gate) * up) @ layer["mlp.down_proj.weight"].T
    return normed(hidden, weights["norm.weight"])


@pytest.mark.parametrize("changes", [{}, SLIDING], ids=["full", "sliding"])
@torch.no_grad()
def test_block_equals_the_formulas(pair: Pair, tmp_path: Path, changes: dict[str, Any]) -> None:
    """Check a block after the head has read a text in parts, next to another text."""
    folder = dflash_folder(pair.target, tmp_path, **changes)
    head, weights = loaded(pair.target, folder), find_head(folder)._files.tensors()  # type: ignore[attr-defined]
    tokens = torch.tensor(pair.prompts[0][:LENGTH])
    states = pair.target(tokens[None], output_hidden_states=True).hidden_states
    read = torch.stack([states[-1], states[0], states[1]], dim=2)[0, :-1]
    text, other = head.open(64), head.open(64)
    for each in (text, other):
        each.restart(1)
    head.read([other], [tokens[1:4].tolist()], [read[:3]])
    head.read([text, other], [tokens[1:8].tolist(), tokens[4:6].tolist()], [read[:7], read[3:5]])
    head.read([text], [tokens[8:].tolist()], [read[7:]])
    inputs = torch.tensor([int(tokens[-1]), *[MASK_TOKEN] * (BLOCK - 1)])
    embedded = pair.target.get_input_embeddings()(inputs)
    count = 2 if changes else 1
    expected = reference(weights, read[:, 1:].flatten(1), embedded, count)[1:]
    with torch.inference_mode():
        found, _ = head.run_blocks([(text, int(tokens[-1])), (other, 7)])
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)
    root = HeadNode(ROOT, int(tokens[-1]), ())
    ids, probs = head.predict([text, other], [[root], []])
    distribution = (expected[0] @ weights["lm_head.weight"].T).softmax(-1)
    best = distribution.topk(ids.shape[1])
    assert ids[0].tolist() == [KEPT[column] for column in best.indices.tolist()]
    torch.testing.assert_close(torch.from_numpy(probs[0]), best.values, atol=1e-5, rtol=0)


@pytest.mark.parametrize("reduced", [True, False], ids=["speculators", "authors"])
@pytest.mark.parametrize("spec", ["state_head:head={}", "auto:state_head={}"])
def test_answers_equal_plain_decoding(pair: Pair, tmp_path: Path, spec: str, reduced: bool) -> None:
    folder = dflash_folder(pair.target, tmp_path, reduced)
    llm = LLM(pair.target, drafter=f"{spec.format(folder)},budget=false", max_batch=3)
    outs = llm.generate(pair.prompts, SamplingParams(max_new_tokens=16))
    assert [out.token_ids for out in outs] == [answer[:16] for answer in pair.answers]
    assert sum(out.stats.drafted_tokens for out in outs) > 50
    params = SamplingParams(max_new_tokens=16, temperature=1.0, seed=2)
    plain = LLM(pair.target, drafter="none").generate(pair.prompts, params)
    outs = llm.generate(pair.prompts, params)
    assert [out.token_ids for out in outs] == [out.token_ids for out in plain]


def test_trees_are_no_deeper_than_the_block(pair: Pair, tmp_path: Path) -> None:
    folder = dflash_folder(pair.target, tmp_path)
    options = "budget=false,max_depth=20,stop_threshold=0,branch_threshold=0.001"
    llm = LLM(pair.target, drafter=f"state_head:head={folder},{options}")
    depths, branches = set(), 0
    for chunk in llm.stream(pair.prompts[0], SamplingParams(max_new_tokens=20)):
        assert chunk.outcome is not None
        tree = chunk.outcome.tree
        depths |= {len(tree.path(node)) for node in range(len(tree))}
        branches += not tree.is_chain()
    assert max(depths) == BLOCK - 1
    assert branches > 0


def test_a_mask_token_beyond_the_target_is_refused(pair: Pair, tmp_path: Path) -> None:
    folder = dflash_folder(pair.target, tmp_path)
    path = tmp_path / "config.json"
    path.write_text(
        path.read_text().replace(f'"mask_token_id": {MASK_TOKEN}', '"mask_token_id": 900')
    )
    with pytest.raises(ConfigError, match="mask token 900, which the target does not have"):
        LLM(pair.target, drafter=f"state_head:head={folder}")
    path.write_text('{"speculators_model_type": "dflash"}')
    with pytest.raises(ConfigError, match="cannot be loaded"):
        LLM(pair.target, drafter=f"state_head:head={folder}")
