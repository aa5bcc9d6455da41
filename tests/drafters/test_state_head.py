"""Test published EAGLE-3 heads: their logits, their use in batches, and refused files."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from paceline import LLM, SamplingParams
from paceline.drafters import create
from paceline.errors import ConfigError, UnsupportedModelError
from paceline.integrations.transformers import Strategy
from paceline.state_heads.eagle3 import Eagle3Head
from paceline.state_heads.find import find_head
from paceline.state_heads.text import ROOT, HeadNode, HeadText
from paceline.state_heads.weights import plain_weight
from tests.support.models import make
from tests.support.shared import COUNT, Pair
from tests.support.state_heads import (
    eagle3_config,
    module_for,
    normed,
    rotated,
    trained_eagle3,
    vocabulary_maps,
    weights_of,
    write_head,
)

KEPT = list(range(3, 203, 2))
LENGTH = 17


def head_folder(target: Any, folder: Path, **changes: Any) -> str:
    """Write a random head with a reduced vocabulary and non-trivial norms."""
    config = eagle3_config(target, len(KEPT), [0, 1], **changes)
    module = module_for(target, config)
    with torch.no_grad():
        for weight in module.parameters():
            if weight.dim() == 1:
                weight.add_(0.2 * torch.randn(weight.shape))
    maps = vocabulary_maps(target.config.vocab_size, KEPT)
    return write_head(folder, config, {**weights_of(module), **maps})


def loaded(target: Any, folder: str) -> Eagle3Head:
    head = find_head(folder)
    assert isinstance(head, Eagle3Head)
    head.attach(target)
    return head


@torch.no_grad()
def states_of(target: Any, text: Tensor) -> Tensor:
    """Return states for all tokens but the first, [n - 1, 1 + layers, hidden]."""
    states = target(text[None], output_hidden_states=True).hidden_states
    return torch.stack([states[-1], states[0], states[1]], dim=2)[0, :-1]


def read_text(
    head: Eagle3Head, tokens: Tensor, states: Tensor, cuts: Sequence[int] = ()
) -> HeadText:
    """Return a text that the head has read in parts that start at `cuts`."""
    text = head.open(64)
    text.restart(1)
    for begin, end in zip((0, *cuts), (*cuts, len(states)), strict=True):
        head.read([text], [tokens[1:][begin:end].tolist()], [states[begin:end]])
    return text


def root_logits(head: Eagle3Head, text: HeadText) -> Tensor:
    return head.logits([text], [[HeadNode(ROOT, 0, ())]])[0][0]


def reference(weights: dict[str, Tensor], embedded: Tensor, joined: Tensor) -> Tensor:
    """Return the logits after the last token, computed from the paper's formulas."""
    layer = {name.removeprefix("layers.0."): weight for name, weight in weights.items()}
    states = normed(joined @ weights["fc.weight"].T, layer["hidden_norm.weight"])
    inputs = torch.cat((normed(embedded, layer["input_layernorm.weight"]), states), dim=-1)
    queries, keys, values = (
        (inputs @ layer[f"self_attn.{name}_proj.weight"].T).view(len(inputs), -1, 16)
        for name in "qkv"
    )
    queries, keys = (rotated(part, torch.arange(1, 1 + len(part))) for part in (queries, keys))
    keys, values = (part.repeat_interleave(2, dim=1) for part in (keys, values))
    scores = torch.einsum("qhd,khd->hqk", queries, keys) / 4
    scores += torch.full(scores.shape[1:], -torch.inf).triu(1)
    attended = torch.einsum("hqk,khd->qhd", scores.softmax(-1), values).flatten(1)
    hidden = states + attended @ layer["self_attn.o_proj.weight"].T
    inputs = normed(hidden, layer["post_attention_layernorm.weight"])
    gate, up = (inputs @ layer[f"mlp.{name}_proj.weight"].T for name in ("gate", "up"))
    hidden = hidden + (torch.nn.functional.silu(gate) * up) @ layer["mlp.down_proj.weight"].T
    return normed(hidden, weights["norm.weight"])[-1] @ weights["lm_head.weight"].T


def test_logits_equal_the_formulas(pair: Pair, tmp_path: Path) -> None:
    head = loaded(pair.target, head_folder(pair.target, tmp_path))
    tokens = torch.tensor(pair.prompts[0][:LENGTH])
    states = states_of(pair.target, tokens)
    embedded = pair.target.get_input_embeddings().weight.detach()[tokens[1:]]
    weights = find_head(str(tmp_path))._files.tensors()  # type: ignore[attr-defined]
    expected = reference(weights, embedded, states[:, 1:].flatten(1))
    found = root_logits(head, read_text(head, tokens, states))
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    "changes",
    [
        {"model_type": "qwen3", "norm_output": True},
        {"norm_before_fc": True, "norm_before_residual": False},
        {"fc_norm": True},
    ],
    ids=str,
)
def test_reading_in_parts_gives_the_same_logits(
    pair: Pair, tmp_path: Path, changes: dict[str, Any]
) -> None:
    """Check also that a chain of draft nodes gives the logits of reading them at once."""
    head = loaded(pair.target, head_folder(pair.target, tmp_path, **changes))
    tokens = torch.tensor(pair.prompts[0][:LENGTH])
    states = states_of(pair.target, tokens)
    whole = root_logits(head, read_text(head, tokens, states))
    parts = read_text(head, tokens, states, cuts=(3, 4, 11))
    torch.testing.assert_close(root_logits(head, parts), whole)
    # A chain of draft nodes, among siblings and with a shorter text in the batch.
    other = read_text(head, tokens[:6], states[:5])
    root = [HeadNode(ROOT, 0, ())]
    head.predict([parts, other], [root, root])
    nodes = [HeadNode(0, 7, (0,)), HeadNode(1, 9, (1,))]
    head.predict([parts, other], [nodes, nodes[:1]])
    deep = [HeadNode(2, 11, (1, 2))]
    branched = head.logits([parts, other], [deep, []])[0][0]
    alone = read_text(head, tokens, states)
    root_logits(head, alone)
    head.logits([alone], [[HeadNode(0, 9, (0,))]])
    chain = head.logits([alone], [[HeadNode(1, 11, (0, 1))]])[0][0]
    torch.testing.assert_close(branched, chain)


def test_head_in_the_authors_format_is_loaded(pair: Pair, tmp_path: Path) -> None:
    """Check layers named "midlayer", flat settings, and layer numbers that count outputs."""
    config = eagle3_config(pair.target, len(KEPT), [1, 1], norm_before_residual=False)
    module = module_for(pair.target, config)
    flat = {
        **config["transformer_layer_config"],
        "architectures": ["LlamaForCausalLMEagle3"],
        "draft_vocab_size": len(KEPT),
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 0]},
    }
    weights = {
        name.replace("layers.0.", "midlayer."): weight
        for name, weight in weights_of(module).items()
    }
    write_head(tmp_path, flat, {**weights, **vocabulary_maps(256, KEPT)})
    head = loaded(pair.target, str(tmp_path))
    assert head.layers == (1, 1)
    llm = LLM(pair.target, drafter=f"state_head:head={tmp_path},budget=false")
    outs = llm.generate(pair.prompts[:3], SamplingParams(max_new_tokens=20))
    assert [out.token_ids for out in outs] == [answer[:20] for answer in pair.answers[:3]]
    assert sum(out.stats.drafted_tokens for out in outs) > 0


def test_default_layers_depend_on_the_target(tmp_path: Path) -> None:
    """Check the published default: the second, the middle and the third layer from the end."""
    target = make("six_words")
    target = type(target)(
        type(target.config)(**{**target.config.to_dict(), "num_hidden_layers": 8})
    )
    target.eval()
    config = eagle3_config(target, 6, [2, 4, 5])
    module = module_for(target, config)
    del config["eagle_aux_hidden_state_layer_ids"]
    head = loaded(target, write_head(tmp_path, config, weights_of(module)))
    assert head.layers == (2, 4, 5)
    prompts = [[1, 2, 3], [4, 5, 0, 1]]
    params = SamplingParams(max_new_tokens=12)
    found = LLM(target, f"state_head:head={tmp_path},budget=false").generate(prompts, params)
    plain = LLM(target, "none").generate(prompts, params)
    assert [out.token_ids for out in found] == [out.token_ids for out in plain]


def test_cached_prefix_without_states_gets_drafts(pair: Pair) -> None:
    """Check that a request with a cached prefix gets drafts once there are states."""
    folder = trained_eagle3(pair.target, pair.texts())
    llm = LLM(pair.target, drafter=f"state_head:head={folder},budget=false", keep_prefixes=1)
    (first,) = llm.generate([pair.prompts[0]], SamplingParams(max_new_tokens=8))
    longer = [*pair.prompts[0], *first.token_ids]
    (again,) = llm.generate([longer], SamplingParams(max_new_tokens=20))
    assert again.token_ids == pair.answers[0][8:28]
    assert again.stats.cached_tokens > 0
    assert again.stats.accepted_tokens > 0


def test_generate_of_transformers(pair: Pair) -> None:
    spec = f"state_head:head={trained_eagle3(pair.target, pair.texts())},budget=false"
    ids = torch.tensor([pair.prompts[1]])
    strategy = Strategy(spec)
    out = pair.target.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=20,
        do_sample=False,
        custom_generate=strategy,
    )
    assert out[0, ids.shape[1] :].tolist() == pair.answers[1][:20]
    assert strategy.stats[0].accepted_tokens > 0


def test_a_head_of_another_model_warns(pair: Pair, tmp_path: Path) -> None:
    folder = head_folder(pair.target, tmp_path)
    weights = find_head(folder)._files.tensors()  # type: ignore[attr-defined]
    config = eagle3_config(pair.target, len(KEPT), [0, 1])
    embedding = pair.target.get_input_embeddings().weight.detach()
    write_head(tmp_path, config, {**weights, "embed_tokens.weight": embedding})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loaded(pair.target, folder)  # its own model: no warning
    write_head(tmp_path, config, {**weights, "embed_tokens.weight": torch.randn(embedding.shape)})
    with pytest.warns(UserWarning, match=r"another model: the cosine .* is -?0\.\d\d"):
        llm = LLM(pair.target, drafter=f"state_head:head={folder},budget=false")
    (out,) = llm.generate([pair.prompts[0]], SamplingParams(max_new_tokens=12))
    assert out.token_ids == pair.answers[0][:12]
    config["transformer_layer_config"]["vocab_size"] = 90_000
    write_head(tmp_path, config, weights)
    with pytest.warns(UserWarning, match="vocabulary of 90,000 tokens, and this model has 256"):
        loaded(pair.target, folder)


def change_config(folder: Path, **changes: Any) -> None:
    import json

    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def without_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def with_pickles(folder: Path) -> None:
    without_weights(folder)
    (folder / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'true'\ntR.")


BROKEN: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no configuration": (lambda folder: (folder / "config.json").unlink(), r"no readable config"),
    "no JSON": (lambda folder: (folder / "config.json").write_text("{"), r"no readable config"),
    "a list": (lambda folder: (folder / "config.json").write_text("[]"), "is not a JSON object"),
    "no weights": (without_weights, "got none; expected weights in safetensors"),
    "pickles": (with_pickles, "only pickled weights, which can run code"),
    "truncated weights": (
        lambda folder: (folder / "model.safetensors").write_bytes(b"\0" * 20),
        "weights that cannot be read",
    ),
    "another kind": (
        lambda folder: change_config(folder, speculators_model_type="medusa", architectures=[]),
        "got a medusa; expected an EAGLE-3 or DFlash head",
    ),
    "another layer type": (
        lambda folder: change_config(folder, transformer_layer_config={"model_type": "bert"}),
        "layers of type 'bert'; known are llama, qwen3",
    ),
    "layers beyond the target": (
        lambda folder: change_config(folder, eagle_aux_hidden_state_layer_ids=[0, 1, 2]),
        "inputs of layers 0, 1, 2, for a target with 2 layers",
    ),
    "another width": (
        lambda folder: change_config(folder, eagle_aux_hidden_state_layer_ids=[0]),
        "reads 128 numbers per token; expected 64",
    ),
    "missing weights": (lambda folder: change_config(folder, fc_norm=True), "fc_norm.0.weight"),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_broken_heads_are_refused(pair: Pair, tmp_path: Path, fault: str) -> None:
    folder = head_folder(pair.target, tmp_path)
    damage, message = BROKEN[fault]
    damage(tmp_path)
    with pytest.raises(ConfigError, match=message):
        LLM(pair.target, drafter=f"state_head:head={folder}")


def test_token_ids_beyond_the_target_are_refused(pair: Pair, tmp_path: Path) -> None:
    config = eagle3_config(pair.target, 4, [0, 1])
    weights = weights_of(module_for(pair.target, config))
    maps = {"d2t": torch.tensor([0, 0, 0, 900])}
    folder = write_head(tmp_path, config, {**weights, **maps})
    with pytest.raises(ConfigError, match="token ids up to 903, but the target has 256"):
        LLM(pair.target, drafter=f"state_head:head={folder}")


def test_a_head_must_be_named_and_exist() -> None:
    with pytest.raises(ConfigError, match=r"got no head; .* state_head:head=FOLDER"):
        create("state_head")
    with pytest.raises(ConfigError, match=r"'/nowhere/head': the folder does not exist"):
        create("state_head:head=/nowhere/head")


def test_auto_takes_a_head_in_place_of_a_draft_model(pair: Pair) -> None:
    folder = trained_eagle3(pair.target, pair.texts())
    tokens = {}
    for spec in ("auto:budget=false", f"auto:budget=false,state_head={folder}"):
        outs = LLM(pair.target, drafter=spec, max_batch=4).generate(
            pair.prompts, SamplingParams(max_new_tokens=COUNT)
        )
        assert [out.token_ids for out in outs] == pair.answers
        tokens[spec] = sum(out.stats.target_forwards for out in outs)
    without, with_head = tokens.values()
    assert with_head < without
    with pytest.raises(ConfigError, match="both a draft model and state_head"):
        create(f"auto:state_head={folder}", draft_model=pair.draft)
    create(f"auto:state_head={folder},use_draft_model=false", draft_model=pair.draft)


def test_a_head_shares_the_lm_head_of_its_target(pair: Pair, tmp_path: Path) -> None:
    config = eagle3_config(pair.target, 256, [0, 1])
    weights = weights_of(module_for(pair.target, config))
    del weights["lm_head.weight"]
    head = loaded(pair.target, write_head(tmp_path, config, weights))
    shared = pair.target.get_output_embeddings().weight
    assert torch.equal(head._module.lm_head.weight, shared)
    with pytest.raises(
        UnsupportedModelError, match="shares the target's LM head, which is not a plain"
    ):
        plain_weight("x", torch.nn.Identity(), "LM head")


@pytest.mark.parametrize("sharded", [False, True], ids=["one file", "sharded"])
def test_a_head_from_the_hub(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sharded: bool
) -> None:
    """Check files from the hub client's cache, offline."""
    commit = "a" * 40
    folder = tmp_path / "models--someone--head" / "snapshots" / commit
    folder.mkdir(parents=True)
    (tmp_path / "models--someone--head" / "refs").mkdir()
    (tmp_path / "models--someone--head" / "refs" / "main").write_text(commit)
    head_folder(pair.target, folder)
    if sharded:
        (folder / "model.safetensors").rename(folder / "part.safetensors")
        index = folder / "model.safetensors.index.json"
        index.write_text('{"weight_map": {"fc.weight": "part.safetensors"}}')
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    head = loaded(pair.target, "someone/head")
    assert head.layers == (0, 1)
