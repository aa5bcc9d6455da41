"""Tiny state heads of the published shapes, random or trained on a few texts."""

from __future__ import annotations

import atexit
import functools
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from paceline.state_heads.eagle3_module import Eagle3Module, Eagle3Shape
from paceline.state_heads.layer_configs import layer_config

TRAINING_STEPS = 60


def layer_settings(target: Any, model_type: str = "llama", **changes: Any) -> dict[str, Any]:
    """Return the decoder layer settings of a head for `target`, as in `config.json`."""
    config = target.config
    return {
        "model_type": model_type,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": 96,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 2048,
        **changes,
    }


def eagle3_config(
    target: Any, draft_vocab_size: int, layers: list[int], **changes: Any
) -> dict[str, Any]:
    """Return `config.json` of an EAGLE-3 head as speculators writes it."""
    shaped = {name: changes.pop(name) for name in ("model_type",) if name in changes}
    return {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "draft_vocab_size": draft_vocab_size,
        "norm_before_residual": True,
        "eagle_aux_hidden_state_layer_ids": layers,
        "transformer_layer_config": layer_settings(target, **shaped),
        **changes,
    }


def module_for(target: Any, config: dict[str, Any]) -> Eagle3Module:
    """Return a random module for a configuration, with the target's embeddings."""
    torch.manual_seed(3)
    flags = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
    module = Eagle3Module(
        Eagle3Shape(
            layer_config(config["transformer_layer_config"]),
            len(config["eagle_aux_hidden_state_layer_ids"]),
            target.config.hidden_size,
            config["draft_vocab_size"],
            **{name: config.get(name, False) for name in flags},
        )
    )
    module.embed_tokens = target.get_input_embeddings()
    return module


def write_head(folder: str | Path, config: dict[str, Any], tensors: dict[str, Tensor]) -> str:
    """Write the files of a head; return the folder."""
    Path(folder, "config.json").write_text(json.dumps(config))
    tensors = {name: tensor.detach().clone().contiguous() for name, tensor in tensors.items()}
    save_file(tensors, Path(folder) / "model.safetensors")
    return str(folder)


def weights_of(module: Any) -> dict[str, Tensor]:
    """Return the weights of a module that a checkpoint holds."""
    return {
        name: tensor
        for name, tensor in module.state_dict().items()
        if not name.startswith("embed_tokens")
    }


def vocabulary_maps(vocab_size: int, token_ids: list[int]) -> dict[str, Tensor]:
    """Return the tensors d2t and t2d of a reduced vocabulary."""
    ids = torch.tensor(token_ids)
    mask = torch.zeros(vocab_size, dtype=torch.bool)
    mask[ids] = True
    return {"d2t": ids - torch.arange(len(ids)), "t2d": mask}


def rotated(heads: Tensor, positions: Tensor, base: float = 10000.0) -> Tensor:
    """Return heads [n, heads, dim] with rotary position embeddings applied."""
    half = heads.shape[-1] // 2
    angles = positions[:, None] / base ** (torch.arange(half) / half)
    cosine, sine = angles.cos()[:, None], angles.sin()[:, None]
    first, second = heads[..., :half], heads[..., half:]
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1)


def normed(states: Tensor, weight: Tensor) -> Tensor:
    """Return states after an RMS norm."""
    return states * (states.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * weight


@functools.cache
def random_eagle3(target: Any) -> str:
    """Write a random head for the whole vocabulary; return its folder."""
    layers = list(range(target.config.num_hidden_layers))
    config = eagle3_config(target, target.config.vocab_size, layers)
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder)
    return write_head(folder, config, weights_of(module_for(target, config)))


@functools.cache
def trained_eagle3(target: Any, texts: tuple[tuple[int, ...], ...]) -> str:
    """Train a head that predicts most tokens of these texts; return its folder."""
    draft_ids = sorted({token for text in texts for token in text})
    layers = list(range(target.config.num_hidden_layers))
    config = eagle3_config(target, len(draft_ids), layers)
    module = module_for(target, config).to(target.device)
    rows = torch.tensor([text[: min(map(len, texts))] for text in texts], device=target.device)
    with torch.no_grad():
        states = target(rows, output_hidden_states=True).hidden_states
    read = torch.stack([states[layer] for layer in layers], dim=2)[:, :-2]
    labels = torch.tensor([[draft_ids.index(token) for token in row] for row in rows.tolist()])
    labels = labels[:, 2:].to(target.device)
    width = read.shape[1]
    positions = torch.arange(width, device=target.device)[None].expand(len(rows), -1)
    mask = read.new_full((width, width), torch.finfo(torch.float32).min).triu(1)
    trainable = [weight for name, weight in module.named_parameters() if "embed" not in name]
    optimiser = torch.optim.Adam(trainable, lr=5e-3)
    for _ in range(TRAINING_STEPS):
        outputs = module(
            rows[:, 1:-1], module.fuse(read), positions, attention_mask=mask[None, None]
        )
        loss = torch.nn.functional.cross_entropy(
            module.project(outputs).flatten(0, 1), labels.flatten()
        )
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder)
    maps = vocabulary_maps(target.config.vocab_size, draft_ids)
    return write_head(folder, config, {**weights_of(module), **maps})
