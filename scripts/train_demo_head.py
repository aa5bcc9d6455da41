"""Train the acceptance head of the embedded pair: paceline/demo/head.

    python scripts/train_demo_head.py DATA WORK [OUT]

DATA is a folder with prompts/{humaneval,gsm8k,spec_bench}.jsonl and text/*.jsonl. WORK holds the
recordings, and an interrupted run continues. The script trains on seven of eight prompts and
reports figures for the eighth. The run takes half an hour on two cores.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import random
from pathlib import Path

import torch

from paceline import demo
from paceline.drafters.specdec_pp.head import AcceptanceHead
from paceline.model.loading import load_model
from paceline.training.acceptance_head.calibrate import calibrate, print_curve
from paceline.training.acceptance_head.evaluate import evaluate, print_judgement
from paceline.training.acceptance_head.record import record
from paceline.training.acceptance_head.settings import RecordConfig, TrainConfig
from paceline.training.acceptance_head.train import train
from paceline.util.options import changed

PROMPTS = ("humaneval", "gsm8k", "spec_bench")
TEXTS = ("gpteacher-codegen", "gpteacher-roleplay", "gpteacher-toolformer", "gsm8k-train")
EACH, TRIED = 250, 600  # prompts of every text file; among so many shuffled lines
EVERY = 8
NOTE = (
    "Prompts: HumanEval (openai/human-eval, MIT), GSM8K (openai/grade-school-math, MIT) and"
    " Spec-Bench (hemingkx/Spec-Bench, Apache-2.0) without each eighth; first questions of"
    " GPTeacher (teknium1/GPTeacher, MIT) and of GSM8K's training set (MIT). Prompts only; all"
    " answers are the embedded target's."
)
RECORDING = changed(RecordConfig(), keep=0.8, mixtures=4, batch=16, dtype="float32")
TRAINING = TrainConfig(depth=1, reject_weight=1.0, epochs=8, lr=1e-3, weight_decay=0.1, note=NOTE)
CURVE_PROMPTS = 16  # of each recording


def text_prompts(data: Path, out: Path) -> Path:
    """Write the first questions of the chats in data/text as a prompt file."""
    with out.open("w") as file:
        for name in TEXTS:
            lines = (data / "text" / f"{name}.jsonl").read_text().splitlines()
            random.Random(0).shuffle(lines)
            chats = [
                (place, json.loads(line)["messages"]) for place, line in enumerate(lines[:TRIED])
            ]
            for place, messages in [
                (place, chat) for place, chat in chats if chat[0]["role"] == "user"
            ][:EACH]:
                entry = {
                    "id": f"{name}-{place}",
                    "category": name,
                    "turns": [messages[0]["content"]],
                }
                file.write(json.dumps(entry) + "\n")
    return out


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("out", type=Path, nargs="?", default=demo.HEAD)
    arguments = parser.parse_args()
    work = arguments.work
    work.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    files = tuple(arguments.data / "prompts" / f"{name}.jsonl" for name in PROMPTS)
    chosen = (
        changed(RECORDING, out=work / "prompts", prompts=files, skip_every=EVERY),
        changed(
            RECORDING,
            out=work / "text",
            prompts=(text_prompts(arguments.data, work / "text.jsonl"),),
        ),
    )
    recordings = [record(config, progress=True) for config in chosen]
    reported = record(
        changed(RECORDING, out=work / "held-out", prompts=files, every=EVERY), progress=True
    )
    head = train(recordings, TRAINING, progress=True)
    judgement = evaluate(head, [reported])
    print_judgement(judgement)
    target, draft = load_model(demo.TARGET, "float32"), load_model(demo.DRAFT, "float32")
    metrics = {**head.card.metrics, "reported": judgement.as_dict()}
    head = AcceptanceHead(dataclasses.replace(head.card, metrics=metrics), head.tensors)
    head = calibrate(head, recordings, target, draft, CURVE_PROMPTS, progress=True)
    print_curve(head)
    head.save(arguments.out)


if __name__ == "__main__":
    main()
