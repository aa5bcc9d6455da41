"""Make the embedded demo pair: a small target, a smaller draft and their shared tokenizer.

Stage 1 (only without --init) trains a byte-level BPE tokenizer. It then trains target and draft to
predict the next token of the chats of --text and of the Python standard library. Stage 2 distils
the draft from the unchanged target. The target continues training prompts, mostly greedily and
partly sampled. The draft learns the target's distribution on these texts, mixed with the target's
arg-max, since greedy verification accepts a draft token only if it equals the arg-max.

    python scripts/train_demo_pair.py --text DIR [--init DIR] --out DIR --minutes 45 --seed 0

--init and --out are folders with `target/` and `draft/`. Stages end after a set time, so a seed
fixes the order of the data, but not the number of steps.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import random
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import transformers
from demo_pair_data import (
    NEW_TOKENS,
    Corpus,
    Rollout,
    collect_rollouts,
    encode_chat,
    load_corpus,
    read_rollouts,
    save_rollouts,
)
from demo_pair_evaluation import EVAL_SETTING, eval_answers, evaluate, mean_agreement
from demo_pair_training import SHAPES, distil, new_model, train_next_token, train_tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

TARGET_SHARE, DRAFT_SHARE, ROLLOUT_SHARE = 0.5, 0.15, 0.4  # of all minutes twice, of stage 2


def make_pair(corpus: Corpus, out: Path, minutes: float, seed: int) -> dict[str, Any]:
    """Run stage 1: train tokenizer, target and draft; return the loss curves."""
    chats = [
        chat
        for group in ("codegen", "roleplay", "toolformer", "gsm8k")
        for chat in corpus.chats.get(group, [])
    ]
    tokenizer = train_tokenizer(
        [f"{question}\n{answer}" for question, answer in chats] + corpus.files
    )
    documents = [
        encode_chat(tokenizer, question, f"{answer}<|end|>\n") for question, answer in chats
    ]
    documents += [tokenizer(text + "<|end|>")["input_ids"] for text in corpus.files]
    random.Random(seed).shuffle(documents)
    stream = torch.tensor([token for document in documents for token in document])
    curves, generator = {}, torch.Generator().manual_seed(seed)
    for role, share in (("target", TARGET_SHARE), ("draft", DRAFT_SHARE)):
        model = new_model(role)
        curves[role] = train_next_token(model, stream, 60 * minutes * share, generator)
        save(out / role, model, tokenizer)
    return curves


def save(folder: Path, model: Any, tokenizer: Any = None) -> None:
    """Write bfloat16 weights and the tokenizer under a temporary name, then rename the
    folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as partial:
        copy.deepcopy(model).to(torch.bfloat16).save_pretrained(partial)
        if tokenizer is not None:
            tokenizer.save_pretrained(partial)
        for path in Path(partial).iterdir():
            path.chmod(0o644)  # safetensors writes 0600
            os.replace(path, folder / path.name)


def copy_pair(source: Path, out: Path) -> None:
    """Copy both models; the draft gets the target's tokenizer files."""
    for role in SHAPES:
        (out / role).mkdir(parents=True, exist_ok=True)
        for path in sorted((source / "target").iterdir()) + sorted((source / role).iterdir()):
            if path.parent.name == role or "token" in path.name or path.suffix == ".jinja":
                partial = out / role / (path.name + ".partial")
                shutil.copyfile(path, partial)
                os.replace(partial, out / role / path.name)


def load(folder: Path) -> Any:
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model.eval()


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Make the embedded demo pair.")
    parser.add_argument(
        "--text", type=Path, required=True, help="folder of chats, one JSON object a line"
    )
    parser.add_argument(
        "--init", type=Path, help="pair to start from; without it both are trained from scratch"
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument(
        "--minutes", type=float, required=True, help="wall clock of all stages together"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--eval-prompts", type=Path, help="folder of prompt files, never trained on"
    )
    parser.add_argument(
        "--rollouts",
        type=Path,
        help="folder of the target's continuations, used if it has any, else filled",
    )
    parser.add_argument(
        "--rollouts-only",
        action="store_true",
        help="only add this seed's continuations to --rollouts",
    )
    return parser.parse_args()


def held_out_questions(corpus: Corpus) -> dict[str, list[str]]:
    """Remove every fiftieth chat from the corpus, and return the questions of these chats."""
    held_out = {
        name: [question for question, _ in chats[::50]] for name, chats in corpus.chats.items()
    }
    corpus.chats = {
        name: [chat for i, chat in enumerate(chats) if i % 50]
        for name, chats in corpus.chats.items()
    }
    return held_out


def find_rollouts(
    args: argparse.Namespace, target: Any, tokenizer: Any, corpus: Corpus, minutes: float
) -> tuple[list[Rollout], list[Path], float]:
    """Read or make the target's continuations.

    Args:
        minutes: Time limit of stage 2.

    Returns:
        The continuations, their files, and the minutes that they took.
    """
    files = sorted(args.rollouts.glob("*.pt")) if args.rollouts is not None else []
    if files and not args.rollouts_only:
        parts = [read_rollouts(path) for path in files]
        return (
            [row for rows, _ in parts for row in rows],
            files,
            round(sum(taken for _, taken in parts), 1),
        )
    start, share = time.monotonic(), 1.0 if args.rollouts_only else ROLLOUT_SHARE
    rollouts = collect_rollouts(
        target, tokenizer, corpus.chats, 60 * minutes * share, random.Random(args.seed)
    )
    taken = round((time.monotonic() - start) / 60, 1)
    if args.rollouts is not None:
        files = [args.rollouts / f"seed-{args.seed}.pt"]
        save_rollouts(files[0], rollouts, taken)
    return rollouts, files, taken


def evaluation_answers(
    args: argparse.Namespace, target: Any, tokenizer: Any, held_out: dict[str, list[str]]
) -> dict[str, dict[str, list[Rollout]]]:
    """Return the target's answers to held-out questions and to the prompts of
    --eval-prompts.
    """
    answers = {"held_out": eval_answers(target, tokenizer, held_out)}
    if args.eval_prompts is not None:
        prompts = {
            path.stem: [json.loads(line)["turns"][0] for line in path.open(encoding="utf-8")]
            for path in sorted(args.eval_prompts.glob("*.jsonl"))
        }
        answers["eval_prompts"] = eval_answers(target, tokenizer, prompts)
    return answers


class BestDraft:
    """Keeps the draft that agrees best with the target on held-out prompts."""

    def __init__(
        self, draft: Any, folder: Path, answers: dict[str, list[Rollout]], agreement: float
    ) -> None:
        self._draft, self._folder, self._answers, self._best = draft, folder, answers, agreement

    def keep(self) -> None:
        """Save the draft if it agrees better than the saved draft."""
        agreement = mean_agreement(evaluate(self._draft, self._answers))
        print(f"held-out agreement {agreement:.4f}, best so far {self._best:.4f}", flush=True)
        if agreement > self._best:
            self._best = agreement
            save(self._folder, self._draft)


def write_training_record(path: Path, record: dict[str, Any]) -> None:
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    os.replace(partial, path)


def main() -> None:
    args = read_arguments()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    # the same passages and held-out chats for all seeds
    corpus = load_corpus(args.text, random.Random(0))
    held_out = held_out_questions(corpus)
    minutes, stage2 = {}, args.minutes
    curves: dict[str, Any] = {}
    if args.init is None:
        curves = make_pair(corpus, args.out, args.minutes, args.seed)
        minutes = {"target": args.minutes * TARGET_SHARE, "draft": args.minutes * DRAFT_SHARE}
        stage2 -= sum(minutes.values())
    source = args.init or args.out
    target, draft = load(source / "target"), load(source / "draft")
    tokenizer: Any = AutoTokenizer.from_pretrained(source / "target")
    rollouts, files, minutes["rollouts"] = find_rollouts(args, target, tokenizer, corpus, stage2)
    if args.rollouts_only:
        return
    if source.resolve() != args.out.resolve():
        copy_pair(source, args.out)
    answers = evaluation_answers(args, target, tokenizer, held_out)
    before = {name: evaluate(draft, rows) for name, rows in answers.items()}
    print(json.dumps(before), flush=True)
    minutes["distillation"] = round(max(stage2 - minutes["rollouts"], stage2 / 4), 1)
    best = BestDraft(
        draft, args.out / "draft", answers["held_out"], mean_agreement(before["held_out"])
    )
    head, seconds = target.lm_head.weight.detach(), 60 * minutes["distillation"]
    curves["distillation"] = distil(
        draft, head, rollouts, seconds, random.Random(args.seed), best.keep
    )
    final = load(args.out / "draft")
    after = {name: evaluate(final, rows) for name, rows in answers.items()}
    record = training_record(args, corpus, files, rollouts) | {
        "minutes": minutes,
        "evaluation": {"setting": EVAL_SETTING, "before": before, "after": after},
        "loss_curve": curves,
    }
    write_training_record(args.out / "training.json", record)
    print(json.dumps(record["evaluation"], indent=1))


def training_record(
    args: argparse.Namespace, corpus: Corpus, files: list[Path], rollouts: list[Rollout]
) -> dict[str, Any]:
    """Return a description of the pair's training data and versions."""
    return {
        "sources": corpus.sources,
        "start": "trained from scratch"
        if args.init is None
        else "target kept, draft distilled from an earlier pair",
        "seed": args.seed,
        "threads": args.threads,
        "minutes": {},
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        "rollouts": {
            "files": [path.name for path in files],
            "rows": len(rollouts),
            "prompt_tokens": sum(row.prompt_length for row in rollouts),
            "new_tokens": len(rollouts) * NEW_TOKENS,
        },
    }


if __name__ == "__main__":
    main()
