"""Provide texts, prompts and target continuations for scripts/train_demo_pair.py."""

from __future__ import annotations

import ast
import json
import random
import sysconfig
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import StaticCache

from paceline.model.forward_arguments import cache_argument

SKIPPED_STDLIB = {
    "test",
    "tests",
    "idlelib",
    "lib2to3",
    "site-packages",
    "turtledemo",
    "__pycache__",
}
INSTRUCTIONS = [
    "Summarize the text above.",
    "Summarize the text above in one sentence.",
    "What is the main idea of this text?",
    "Who is speaking in the text above, and what happens?",
    "Answer the question with the help of the text above: why does it matter?",
    "List the most important points.",
]
SHARES = {
    "codegen": 0.22,
    "stubs": 0.24,
    "gsm8k": 0.2,
    "roleplay": 0.16,
    "toolformer": 0.05,
    "passages": 0.13,
}
MAX_PROMPT = 880  # longer prompts keep their first 4 and last tokens
NEW_TOKENS, ROLLOUT_BATCH = 128, 64

Chat = tuple[str, str]  # question, answer


@dataclass
class Corpus:
    """Training text: chats by source, library files, and their description for the record."""

    chats: dict[str, list[Chat]] = field(default_factory=dict)
    files: list[str] = field(default_factory=list)
    sources: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class Rollout:
    """A prompt and the target's continuation.

    Shapes: ids [length + 1], hidden [length, target hidden].
    """

    ids: Tensor
    hidden: Tensor
    prompt_length: int


def function_stubs(source: str) -> Iterator[Chat]:
    """Return the documented functions of a module as (signature and docstring, body)."""
    lines = source.splitlines()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef) and ast.get_docstring(node) and len(node.body) > 1:
            split, end = node.body[0].end_lineno, node.end_lineno
            stub = [line[node.col_offset :] for line in lines[node.lineno - 1 : split]]
            yield (
                "\n".join(stub) + "\n",
                "\n".join(line[node.col_offset :] for line in lines[split:end]),
            )


def load_corpus(text: Path, rng: random.Random) -> Corpus:
    corpus = Corpus()
    for path in sorted(text.glob("*.jsonl")):
        messages = [json.loads(line)["messages"] for line in path.open(encoding="utf-8")]
        source = next((name for name in SHARES if name in path.stem), path.stem)
        corpus.chats[source] = [(chat[0]["content"], chat[1]["content"]) for chat in messages]
        corpus.sources.append({"name": path.name, "licence": "MIT", "bytes": path.stat().st_size})
    library = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(library.rglob("*.py")):
        if SKIPPED_STDLIB.isdisjoint(path.relative_to(library).parts):
            corpus.files.append(path.read_text("utf-8", errors="replace"))
    size = sum(len(text.encode()) for text in corpus.files)
    corpus.sources.append({"name": "Python standard library", "licence": "PSF-2.0", "bytes": size})
    corpus.chats["stubs"] = [stub for text in corpus.files for stub in function_stubs(text)]
    paragraphs = [answer for _, answer in corpus.chats.get("roleplay", []) if len(answer) > 200]
    corpus.chats["passages"] = [
        ("\n\n".join([*rng.sample(paragraphs, rng.randint(1, 4)), rng.choice(INSTRUCTIONS)]), "")
        for _ in paragraphs[4:]
    ]
    return corpus


def encode_chat(tokenizer: Any, question: str, answer: str = "") -> list[int]:
    """Return the tokens of a chat-template prompt, followed by an unfinished answer."""
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": question}], add_generation_prompt=True, tokenize=False
    )
    ids: list[int] = tokenizer(text + answer)["input_ids"]
    return ids


@torch.no_grad()
def roll_out(
    target: Any,
    prompts: list[list[int]],
    new_tokens: int,
    temperatures: Tensor,
    generator: torch.Generator,
) -> list[Rollout]:
    """Continue left-padded prompts past EOS, and keep every hidden state of the target.

    A row with temperature 0 is greedy. The target's logits can be recomputed from `hidden` with
    its head. This takes 2 bytes per hidden dimension and token, instead of storing the whole
    distribution.
    """
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    held = cache_argument(target)
    cache = StaticCache(config=target.config, max_cache_len=width + new_tokens)
    positions, fed, states = (mask.cumsum(1) - 1).clamp(min=0), ids, []
    for _ in range(new_tokens):
        hidden = target.model(
            input_ids=fed,
            attention_mask=mask,
            position_ids=positions,
            use_cache=True,
            **{held: cache},
        ).last_hidden_state
        states.append(hidden.half())
        logits = target.lm_head(hidden[:, -1])
        sampled = torch.multinomial(
            torch.softmax(logits / temperatures.clamp(min=0.1)[:, None], -1), 1, generator=generator
        )
        fed = torch.where(temperatures[:, None] > 0, sampled, logits.argmax(-1, keepdim=True))
        ids, mask = torch.cat([ids, fed], 1), torch.cat([mask, torch.ones_like(fed)], 1)
        positions = positions[:, -1:] + 1
    kept = torch.cat(states, 1)
    pads = [width - len(prompt) for prompt in prompts]
    return [
        Rollout(ids[row, pad:].clone(), kept[row, pad:].clone(), width - pad)
        for row, pad in enumerate(pads)
    ]


def collect_rollouts(
    target: Any, tokenizer: Any, chats: dict[str, list[Chat]], seconds: float, rng: random.Random
) -> list[Rollout]:
    """Continue training prompts until the time is used up.

    Half of the continuations start inside the written answer.
    """
    generator, start, rollouts = (
        torch.Generator().manual_seed(rng.randrange(2**31)),
        time.monotonic(),
        [],
    )
    names = [name for name in SHARES if chats.get(name)]
    while time.monotonic() - start < seconds:
        prompts = []
        for name in rng.choices(names, [SHARES[name] for name in names], k=8 * ROLLOUT_BATCH):
            question, answer = rng.choice(chats[name])
            given = answer[: rng.randrange(len(answer) + 1)] if rng.random() < 0.5 else ""
            prompts.append(clip(encode_chat(tokenizer, question, given)))
        prompts.sort(key=len)
        batches = [prompts[i : i + ROLLOUT_BATCH] for i in range(0, len(prompts), ROLLOUT_BATCH)]
        for batch in batches:
            heat = [rng.choice([0.0, 0.0, rng.uniform(0.5, 1.0)]) for _ in batch]
            rollouts += roll_out(target, batch, NEW_TOKENS, torch.tensor(heat), generator)
        print(f"rollouts {len(rollouts)} after {time.monotonic() - start:.0f} s", flush=True)
    return rollouts


def clip(ids: list[int]) -> list[int]:
    return ids if len(ids) <= MAX_PROMPT else ids[:4] + ids[4 - MAX_PROMPT :]


def save_rollouts(path: Path, rollouts: list[Rollout], minutes: float) -> None:
    state = {
        "ids": torch.cat([row.ids for row in rollouts]).short(),
        "hidden": torch.cat([row.hidden for row in rollouts]),
        "sizes": [(len(row.hidden), row.prompt_length) for row in rollouts],
        "minutes": minutes,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    torch.save(state, partial)
    partial.replace(path)


def read_rollouts(path: Path) -> tuple[list[Rollout], float]:
    """Read the rollouts of `save_rollouts`, and the minutes that they took."""
    state = torch.load(path)
    lengths = [length for length, _ in state["sizes"]]
    ids = state["ids"].long().split([length + 1 for length in lengths])
    hidden = state["hidden"].split(lengths)
    prompts = [prompt for _, prompt in state["sizes"]]
    return [Rollout(*row) for row in zip(ids, hidden, prompts, strict=True)], state["minutes"]
