"""Measure what `auto` saves on a hybrid model, relative to plain decoding on one thread.

    python scripts/hybrid_speed.py docs/results/hybrid-speed.json

A tiny LFM2 (short convolutions and attention) learns to repeat lines of tokens with other names in
them, as in edits of code. The model is then enlarged to 8 times the width and twice the depth. The
added weights do not change its answers. Plain decoding and `auto` take turns on texts that are new
to both. Times are CPU time of the process.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from torch import Tensor
from torch.nn import functional
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from paceline import LLM, SamplingParams
from paceline.util.machine import processor

VOCAB, START, AGAIN, LINE = 256, 1, 3, 4
NAMES = range(8, 40, 2)  # the repeated text has the next id in place of each
NUM_LINES, LINE_TOKENS = 6, 12
STEPS, BATCH = 200, 16
NUM_PROMPTS, REPEATS = 12, 3
WIDTH, SCALE = 128, 8
_LAYERS = ["conv", "full_attention"] * 2
_PARTS = {"conv.in_proj": 3}  # matrices of equal size, one below the other
_WRITERS = ("out_proj", "w2")  # write to the residual stream


def build(scale: int, layers: int) -> PreTrainedModel:
    """Return a model with random weights in float32, at `scale` times the smallest width."""
    config = AutoConfig.for_model(
        "lfm2",
        vocab_size=VOCAB,
        hidden_size=WIDTH * scale,
        intermediate_size=512 * scale,
        block_auto_adjust_ff_dim=False,
        num_hidden_layers=layers,
        num_attention_heads=2 * scale,
        num_key_value_heads=scale,
        layer_types=_LAYERS * (layers // len(_LAYERS)),
        norm_eps=1e-6 / scale,
        tie_word_embeddings=False,
        pad_token_id=0,
        bos_token_id=START,
        eos_token_id=2,
    )
    return AutoModelForCausalLM.from_config(config).float()


def texts(count: int, generator: torch.Generator) -> tuple[Tensor, int]:
    """Return texts and the length of their prompts: lines, then the lines with other names."""
    lines = torch.randint(48, VOCAB, (count, NUM_LINES, LINE_TOKENS), generator=generator)
    is_name = torch.rand(lines.shape, generator=generator) < 0.1
    names = torch.tensor(NAMES)
    chosen = names[torch.randint(len(names), lines.shape, generator=generator)]
    lines = torch.where(is_name, chosen, lines)
    lines[..., 0] = LINE
    again = torch.where(is_name, lines + 1, lines)
    again[..., 0] = LINE
    marks = torch.tensor([[START], [AGAIN]]).expand(2, count)[..., None]
    rows = torch.cat([marks[0], lines.flatten(1), marks[1], again.flatten(1)], 1)
    return rows, 2 + NUM_LINES * LINE_TOKENS


def train(model: PreTrainedModel) -> float:
    """Train the model, and return its share of correct tokens in repeated lines."""
    generator = torch.Generator().manual_seed(0)
    optimiser = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 2e-3, total_steps=STEPS)
    right = 0.0
    for step in range(STEPS):
        rows, prompt = texts(BATCH, generator)
        logits = model(input_ids=rows[:, :-1]).logits[:, prompt - 1 :]
        wanted = rows[:, prompt:]
        loss = functional.cross_entropy(logits.flatten(0, 1), wanted.flatten())
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        right = float((logits.argmax(-1) == wanted).float().mean())
        if step % 50 == 0 or step == STEPS - 1:
            print(f"step {step}: loss {loss.item():.3f}, right {right:.3f}", flush=True)
    return right


@torch.no_grad()
def enlarge(small: PreTrainedModel, layers: int) -> PreTrainedModel:
    """Return a model that computes the same function at the cost of a larger one.

    The added dimensions of the residual stream stay zero, and added heads, neurons and layers
    write zeros to it.

    Args:
        small: Trained model; not changed.
        layers: New number of layers, a multiple of the layers of the model.
    """
    large = build(SCALE, layers)
    own = dict(small.named_parameters())
    for name, weight in large.named_parameters():
        is_writer = any(f".{part}." in name for part in _WRITERS)
        if is_writer or "embed_tokens" in name:
            weight.zero_()
        if name not in own:
            continue
        source = own[name]
        if weight.shape == source.shape:
            weight.copy_(source)
        elif "norm" in name:  # its mean square covers more dimensions
            weight[: len(source)] = source * SCALE**-0.5
        else:
            parts = next((count for part, count in _PARTS.items() if part in name), 1)
            for rows, known in zip(weight.chunk(parts), source.chunk(parts), strict=True):
                rows[tuple(slice(size) for size in known.shape)] = known
    return large.eval()


def measure(model: PreTrainedModel) -> dict[str, Any]:
    """Decode held-out texts with and without drafts in turn; each repeat uses new texts."""
    length = NUM_LINES * LINE_TOKENS
    params = SamplingParams(max_new_tokens=length, ignore_eos=True)
    engines = {spec: LLM(model, spec, batch_invariant=False) for spec in ("none", "auto")}
    seconds: dict[str, list[float]] = {spec: [] for spec in engines}
    right, equal, forwards = 0, 0, 0
    generator = torch.Generator().manual_seed(1)
    warm_up, prompt = texts(2, generator)
    for llm in engines.values():  # compiles kernels, and measures the costs of forward passes
        llm.generate(warm_up[:, :prompt].tolist(), params)
    for _ in range(REPEATS):
        rows, _ = texts(NUM_PROMPTS, generator)
        answers: dict[str, list[list[int]]] = {}
        for spec, llm in engines.items():
            start = time.process_time()
            outs = [llm.generate([text], params)[0] for text in rows[:, :prompt].tolist()]
            seconds[spec].append(time.process_time() - start)
            answers[spec] = [out.token_ids for out in outs]
            forwards += sum(out.stats.target_forwards for out in outs if spec == "auto")
        pairs = zip(answers["none"], answers["auto"], strict=True)
        equal += sum(plain == drafted for plain, drafted in pairs)
        right += int((torch.tensor(answers["auto"]) == rows[:, prompt:]).sum())
    tokens = NUM_PROMPTS * length
    return {
        "tokens_per_repeat": tokens,
        "answers": REPEATS * NUM_PROMPTS,
        "equal_answers": equal,
        "right_tokens": round(right / REPEATS / tokens, 3),
        "tokens_per_forward": round(REPEATS * tokens / forwards, 2),
        "ms_per_token": {
            spec: [round(1e3 * each / tokens, 2) for each in times]
            for spec, times in seconds.items()
        },
        "speedups": [
            round(plain / drafted, 2)
            for plain, drafted in zip(seconds["none"], seconds["auto"], strict=True)
        ],
    }


def main(path: Path) -> None:
    """Train the model, measure it and write the results.

    Args:
        path: JSON file to write.
    """
    torch.set_num_threads(1)
    torch.manual_seed(0)
    small = build(1, len(_LAYERS))
    train(small)
    large = enlarge(small.eval(), 2 * len(_LAYERS))
    rows, _ = texts(2, torch.Generator().manual_seed(2))
    with torch.inference_mode():
        difference = float(
            (small(input_ids=rows).logits - large(input_ids=rows).logits).abs().max()
        )
    print(f"the enlarged model's logits differ by {difference:.1g}")
    assert difference < 0.01, "the enlarged model must compute the same function"
    results = {
        "kind": "hybrid speed (1)",
        "processor": processor(),
        "threads": 1,
        "dtype": "bfloat16",
        "parameters": sum(weight.numel() for weight in large.parameters()),
        **measure(large.to(torch.bfloat16)),
    }
    print(results)
    path.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
