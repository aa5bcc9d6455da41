"""Train the tokenizer and models of scripts/train_demo_pair.py."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from demo_pair_data import Rollout
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import LlamaConfig, LlamaForCausalLM

VOCAB_SIZE = 4096
SPECIAL_TOKENS = ["<|pad|>", "<|end|>", "<|user|>", "<|assistant|>"]  # ids 0 to 3
CHAT_TEMPLATE = (
    "{% for m in messages %}{% if m['role']=='user' %}<|user|>\n{{ m['content'] }}\n"
    "{% else %}<|assistant|>\n{{ m['content'] }}<|end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
SHAPES = {"target": (6, 256, 688), "draft": (2, 128, 352)}  # layers, hidden size, MLP size
BATCH_TOKENS = 3072
PEAK_RATE = 1.5e-3
PROMPT_STRIDE = 16  # one in so many prompt positions counts towards the loss
ARGMAX_SHARE = 0.7  # of the label: the target's argmax; the rest is its distribution
CHECKPOINTS = 8


def learning_rate(peak: float, done: float) -> float:
    """Return the learning rate: a short warm-up, then linear decay.

    `done` is the elapsed share of the stage's time.
    """
    return peak * min(1.0, done / 0.02) * max(0.0, 1.0 - done) + 1e-6


def train_tokenizer(texts: list[str]) -> Any:
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=alphabet,
        show_progress=False,
    )
    bpe.train_from_iterator(texts, trainer)
    fast: Any = transformers.PreTrainedTokenizerFast
    tokenizer = fast(tokenizer_object=bpe, eos_token="<|end|>", pad_token="<|pad|>")
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def new_model(role: str) -> Any:
    layers, hidden, mlp = SHAPES[role]
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=hidden,
        intermediate_size=mlp,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=1,
        pad_token_id=0,
    )
    return LlamaForCausalLM(config)


def train_next_token(
    model: Any, stream: Tensor, seconds: float, generator: torch.Generator
) -> list[list[float]]:
    """Train on the next token in windows of 512 tokens; return the loss curve."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0, betas=(0.9, 0.95), weight_decay=0.05)
    start, step, curve = time.monotonic(), 0, []
    while (done := (time.monotonic() - start) / seconds) < 1.0:
        optimizer.param_groups[0]["lr"] = learning_rate(2e-3, done)
        offsets = torch.randint(len(stream) - 513, (8,), generator=generator)
        windows = torch.stack([stream[i : i + 513] for i in offsets.tolist()])
        logits = model(input_ids=windows[:, :-1]).logits
        loss = F.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())
        descend(model, optimizer, loss)
        if step % 50 == 0:
            curve.append([step, round(loss.item(), 4)])
        step += 1
    return curve


def descend(model: Any, optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


def token_batches(rollouts: list[Rollout], rng: random.Random) -> Iterator[list[Rollout]]:
    """Yield batches of texts with similar lengths, about BATCH_TOKENS each, without end."""
    while True:
        batches = [list[Rollout]()]
        for row in sorted(rollouts, key=lambda row: (len(row.hidden) // 16, rng.random())):
            if (len(batches[-1]) + 1) * len(row.hidden) > BATCH_TOKENS and batches[-1]:
                batches.append([])
            batches[-1].append(row)
        rng.shuffle(batches)
        yield from batches


def scored(row: Rollout) -> Tensor:
    """Return which positions the loss uses, bool [length].

    These are all positions of the continuation and a few of the prompt.
    """
    position = torch.arange(len(row.hidden))
    return (position >= row.prompt_length - 1) | (position % PROMPT_STRIDE == 0)


@torch.no_grad()
def soft_labels(teacher: Tensor, head: Tensor) -> Tensor:
    """Return the target's distribution mixed with its arg-max, [positions, vocab]."""
    label = torch.softmax(F.linear(teacher.float(), head), -1)
    best = label.argmax(-1, keepdim=True)
    return label.mul_(1 - ARGMAX_SHARE).scatter_add_(
        1, best, torch.full_like(best, ARGMAX_SHARE, dtype=label.dtype)
    )


def distil(
    draft: Any,
    head: Tensor,
    rollouts: list[Rollout],
    seconds: float,
    rng: random.Random,
    keep: Callable[[], None],
) -> list[list[float]]:
    """Run stage 2: fit the draft to the target's distribution; return the loss curve.

    `keep` is called at each checkpoint. `head` is the target's output matrix, [vocab, target
    hidden].
    """
    optimizer = torch.optim.AdamW(draft.parameters(), lr=0.0, betas=(0.9, 0.98), weight_decay=0.01)
    start, checkpoint, curve = time.monotonic(), 1, []
    for step, batch in enumerate(token_batches(rollouts, rng)):
        done = (time.monotonic() - start) / seconds
        if done * CHECKPOINTS >= checkpoint:
            keep()
            checkpoint += 1
        if done >= 1.0:
            break
        optimizer.param_groups[0]["lr"] = learning_rate(PEAK_RATE, done)
        places = [scored(row) for row in batch]
        tokens = pad_sequence([row.ids[:-1] for row in batch], batch_first=True)
        states = draft.model(
            input_ids=tokens
        ).last_hidden_state  # causal: right padding needs no mask
        logits = draft.lm_head(states[pad_sequence(places, batch_first=True)])
        teacher = torch.cat([row.hidden[place] for row, place in zip(batch, places, strict=True)])
        loss = F.cross_entropy(logits, soft_labels(teacher, head))
        descend(draft, optimizer, loss)
        if step % 50 == 0:
            curve.append([step, round(loss.item(), 4)])
            print(f"step {step} loss {loss.item():.4f} done {done:.3f}", flush=True)
    return curve
