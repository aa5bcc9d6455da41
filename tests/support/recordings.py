"""Recordings for tests of acceptance heads, real and synthetic."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from paceline.model.identity import Sketch, model_identity
from paceline.training.acceptance_head.record import record
from paceline.training.acceptance_head.recording import Recording, RecordingFolder, read_recording
from paceline.training.acceptance_head.settings import RecordConfig
from paceline.util.options import changed
from tests.support.shared import Pair

QUICK = changed(RecordConfig(), max_new_tokens=12, limit=6, batch=2, dtype="float32")


def record_pair(out: Path, **options: Any) -> Recording:
    """Return a short recording of the embedded pair."""
    return record(changed(QUICK, out=out, **options))


def synthetic_recording(folder: Path, pair: Pair, count: int, each: int) -> Recording:
    """Return a recording with labels from sigmoid(2 * hidden[0] + log-prob + 1)."""
    fingerprint, hidden_size = model_identity(pair.draft)
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(count * each, hidden_size, generator=generator).bfloat16()
    log_probs = -torch.rand(count * each, generator=generator)
    accepted = torch.sigmoid(2 * hidden[:, 0].float() + log_probs + 1)
    prompts = torch.arange(count, dtype=torch.int32).repeat_interleave(each)
    settings = {
        "target": "t", "draft": "d", "draft_fingerprint": fingerprint,
        "draft_sketch": Sketch.from_model(pair.draft).encode(),
        "hidden_size": hidden_size, "vocab_size": 256,
        "batches": 1, "batch": 4, "max_new_tokens": 16, "temperature": 0.0, "top_k": 0,
        "top_p": 1.0, "min_p": 0.0, "seed": 0,
    }  # fmt: skip
    ids = [[3, index % 250 + 3, index // 250 + 3] for index in range(count)]
    positions = {
        "hidden": hidden,
        "log_probs": log_probs,
        "entropies": torch.rand(count * each, generator=generator),
        "labels": torch.bernoulli(accepted, generator=generator),
        "top_probs": log_probs.exp(),
        "prompts": prompts,
    }
    RecordingFolder(folder, settings, ids).write(0, positions)
    return read_recording(folder)
