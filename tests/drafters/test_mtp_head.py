"""Test the MTP layer of a checkpoint: its predictions and its drafts in batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.cache_utils import DynamicCache
from transformers.modeling_layers import MtpModel

from paceline import LLM, SamplingParams
from paceline.errors import ConfigError
from paceline.state_heads.mtp import MtpHead
from paceline.state_heads.text import ROOT, HeadNode
from tests.support.models import make
from tests.support.shared import Pair
from tests.support.tree_models import deepseek, llama

# Older versions of transformers have no single forward pass of a layer to compare with.
pytestmark = pytest.mark.skipif(
    not hasattr(MtpModel, "forward_layer"), reason="needs transformers 5.24"
)
LAYERS = 2
PROMPTS = [[1, 7, 9, 30, 31, 7, 9], [1, 5], [1, 40, 41, 42, 43, 44, 45, 46, 47, 48, 49, 50]]
MELLUM = {
    "head_dim": 16,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "num_mtp_layers": 1,
    "layer_types": ["full_attention", "sliding_attention"],
    "sliding_window": 4,
}
CONFIGS = {
    "deepseek_v3": ("deepseek_v3", deepseek(num_hidden_layers=LAYERS, num_nextn_predict_layers=1)),
    "mellum": ("mellum", llama(num_hidden_layers=LAYERS, **MELLUM)),
}


def stored_model(name: str, folder: Path) -> Any:
    """Return a random model loaded from `folder`, whose checkpoint has an MTP layer."""
    model_type, options = CONFIGS[name]
    torch.manual_seed(0)
    config = AutoConfig.for_model(model_type, **options)
    model = AutoModelForCausalLM.from_config(config).eval().float()
    model.save_pretrained(folder)
    layer = MtpModel(model, 1).layers[0]
    for weight in layer.parameters():
        torch.nn.init.normal_(weight, 0.5 * (weight.dim() == 1), 0.2)
    path = folder / "model.safetensors"
    save_file(
        load_file(path) | published_weights(layer.state_dict(), model_type), path, {"format": "pt"}
    )
    loaded = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    # the class would otherwise only load layer 61 of the published models
    if model_type == "deepseek_v3":
        loaded._keys_to_ignore_on_load_unexpected = [rf"model\.layers\.{LAYERS}\."]
    return loaded


def published_weights(weights: dict[str, Tensor], model_type: str) -> dict[str, Tensor]:
    """Return the weights of an MTP layer under the names in published checkpoints."""
    names = {}
    for name in weights:
        inner = name.removeprefix("mtp_block.")
        if model_type == "deepseek_v3":
            inner = inner.replace("post_norm.", "shared_head.norm.", inner.startswith("post_norm"))
            names[name] = f"model.layers.{LAYERS}.{inner}"
        else:
            outer = {
                "eh_proj": "fc",
                "enorm": "pre_fc_norm_embedding",
                "hnorm": "pre_fc_norm_hidden",
            }
            first, _, rest = name.partition(".")
            first = {**outer, "post_norm": "norm"}.get(first, first)
            names[name] = f"mtp.layers.0.{inner}" if first == "mtp_block" else f"mtp.{first}.{rest}"
    return split_experts({names[name]: weight for name, weight in weights.items()})


def split_experts(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Split the experts' weights, as checkpoints store them."""
    split: dict[str, Tensor] = {}
    for name, weight in weights.items():
        start, found, kind = name.rpartition("experts.")
        if not found or kind not in ("gate_up_proj", "down_proj"):
            split[name] = weight.contiguous()
            continue
        for index, expert in enumerate(weight):
            halves = {"gate_proj": expert.chunk(2)[0], "up_proj": expert.chunk(2)[1]}
            for part, rows in (halves if kind == "gate_up_proj" else {kind: expert}).items():
                split[f"{start}experts.{index}.{part}.weight"] = rows.clone().contiguous()
    return split


@pytest.fixture(scope="module", params=CONFIGS)
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return stored_model(request.param, tmp_path_factory.mktemp(request.param))


@torch.no_grad()
def test_predictions_equal_transformers(target: Any) -> None:
    """Check the layer over a whole text, and after a draft token fed with the layer's output."""
    tokens = torch.tensor([PROMPTS[2]])
    states = target(tokens, output_hidden_states=True).hidden_states[-1]
    head = MtpHead()
    head.attach(target)
    text = head.open(64)
    text.restart(1)
    for begin, end in ((0, 5), (5, 11)):
        read = states[0, begin:end, None]
        head.read([text], [tokens[0, begin + 1 : end + 1].tolist()], [read])
    found = [head.logits([text], [[HeadNode(ROOT, 0, ())]])[0][0]]
    found.append(head.logits([text], [[HeadNode(0, 3, (0,))]])[0][0])
    # transformers runs a batch of one without a cache; the draft token extends the text
    model = MtpModel.from_pretrained(target)
    positions = torch.arange(1, 13)[None]
    inputs = torch.tensor([[*PROMPTS[2][1:], 3]])
    first = model.forward_layer(0, states[:, :-1], positions[:, :-1], cache(model), inputs[:, :-1])
    read = torch.cat((states[:, :-1], first[:, -1:]), dim=1)
    outputs = model.forward_layer(0, read, positions, cache(model), inputs)
    expected = model._project_to_logits(torch.stack((first[0, -1], outputs[0, -1])))
    torch.testing.assert_close(torch.stack(found), expected, atol=1e-4, rtol=0)


def cache(model: Any) -> Any:
    return DynamicCache(config=model.config)


@pytest.mark.parametrize("spec", ["state_head:head=mtp", "auto:state_head=mtp"])
def test_answers_equal_plain_decoding(target: Any, spec: str) -> None:
    drafted = LLM(target, drafter=f"{spec},budget=false", max_batch=3)
    plain = LLM(target, drafter="none")
    for params in (SamplingParams(20), SamplingParams(20, temperature=1.0, seed=3)):
        outs, expected = (llm.generate(PROMPTS, params) for llm in (drafted, plain))
        assert [out.token_ids for out in outs] == [out.token_ids for out in expected]
        assert sum(out.stats.drafted_tokens for out in outs) > 20


def test_a_model_without_the_layer_is_refused(pair: Pair, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="LlamaForCausalLM without MTP layers"):
        LLM(pair.target, drafter="state_head:head=mtp")
    with pytest.raises(ConfigError, match=r"the MTP layer in '.*' cannot be loaded"):
        LLM(make("deepseek_v3"), drafter="state_head:head=mtp")
