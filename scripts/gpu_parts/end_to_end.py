"""Part end_to_end: tokens per second of whole answers, against transformers' `generate`.

The default target is the embedded model, enlarged: its answers are real, and a forward pass costs
as much as one of a large model.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import nullcontext
from functools import cache, partial
from typing import Any
from zlib import crc32

import torch

from gpu_parts.clock import wait
from gpu_parts.models import free_memory, measured_draft, measured_target, without_cudnn
from gpu_parts.prompts import prompt_texts
from gpu_parts.run import Case, Run, Values, recorded_rows
from paceline import LLM, SamplingParams
from paceline.drafters import entry
from paceline.report.prompts import Prompt, encode

_WARM_TOKENS, _BASELINE_CALLS = 32, 2
_INVARIANT = ", batch-invariant"
# transformers as it is, and with SDPA's other kernels where cuDNN is slow
_BASELINES = {"transformers": True, "transformers without cuDNN": False}


class Setting:
    """The models and the prompts.

    Args:
        run: Options of the run.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        start = time.monotonic()
        self.target, self.tokenizer, self.label = measured_target(run)
        wait(run.device)
        self.seconds = time.monotonic() - start
        self.draft = cache(lambda: measured_draft(run))

    def prompts(self, batch: int) -> tuple[list[list[int]], list[list[int]]]:
        """Return the token ids of the measured prompts, and others to warm up."""
        sizes = self.run.sizes
        count = dict(zip(sizes.batches, sizes.prompts, strict=True))[batch]
        texts = prompt_texts(count + batch)
        ids = [encode(Prompt(str(i), "", text), self.tokenizer) for i, text in enumerate(texts)]
        return ids[:count], ids[count:]


def cases(run: Run) -> Iterator[Case]:
    """Time whole answers of new prompts after a warm-up."""
    setting = cache(lambda: Setting(run))
    yield Case("target", lambda: _target(setting()))
    for batch in run.sizes.batches:
        for name, with_cudnn in _BASELINES.items():
            measure = partial(_transformers, setting, batch, with_cudnn)
            yield Case(f"batch {batch}, {name}", measure)
        for name in run.sizes.methods:
            if entry(name).needs_draft_model and run.draft_model is None:
                continue
            yield Case(f"batch {batch}, {name}", partial(_drafter, setting, batch, name))
        for name in run.sizes.invariant_methods:
            measure = partial(_drafter, setting, batch, name, invariant=True)
            yield Case(f"batch {batch}, {name}{_INVARIANT}", measure)


def _target(setting: Setting) -> Values:
    return {"model": setting.label, "seconds": setting.seconds}


def _transformers(setting: Any, batch: int, with_cudnn: bool) -> Values:
    """Time `generate`, with batches padded on the left."""
    here: Setting = setting()
    prompts, others = here.prompts(batch)
    prompts = prompts[: _BASELINE_CALLS * batch]  # plain speed depends little on the text
    with nullcontext() if with_cudnn else without_cudnn():
        _generate(here, others[:batch], _WARM_TOKENS)
        wait(here.run.device)
        start = time.perf_counter()
        for first in range(0, len(prompts), batch):
            _generate(here, prompts[first : first + batch], here.run.sizes.tokens)
        wait(here.run.device)
    seconds, tokens = time.perf_counter() - start, len(prompts) * here.run.sizes.tokens
    steps = here.run.sizes.tokens * -(-len(prompts) // batch)
    return {"tokens_per_s": tokens / seconds, "ms_per_step": 1e3 * seconds / steps}


def _generate(setting: Setting, prompts: list[list[int]], tokens: int) -> None:
    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(one)) + one for one in prompts])
    mask = torch.tensor([[0] * (longest - len(one)) + [1] * len(one) for one in prompts])
    setting.target.generate(
        ids.to(setting.run.device),
        attention_mask=mask.to(setting.run.device),
        max_new_tokens=tokens,
        min_new_tokens=tokens,
        do_sample=False,
    )


def _drafter(setting: Any, batch: int, name: str, invariant: bool = False) -> Values:
    """Time a drafter on prompts that it has not seen; a few others warm it up."""
    here: Setting = setting()
    start = time.perf_counter()
    llm = engine(here, batch, name, invariant)
    llm.finish_draft_head()
    prompts, others = here.prompts(batch)
    llm.generate(others, greedy(here.run.sizes.tokens))  # captures the graphs of most shapes
    made = time.perf_counter() - start
    timing, forwards = llm.timing, llm.load.forwards
    start = time.perf_counter()
    answers = llm.generate(prompts, greedy(here.run.sizes.tokens))
    seconds = time.perf_counter() - start
    timing, steps = llm.timing - timing, llm.load.forwards - forwards
    tokens, stats = sum(len(one.token_ids) for one in answers), [one.stats for one in answers]
    got = [crc32(str(one.token_ids).encode()) for one in answers]
    base, expected = _compared_with(here.run, batch, invariant)
    expected = got if name == "none" else expected
    rows = sum(sum(one.query_tokens[one.prefill_forwards :]) for one in stats)
    return {
        "tokens_per_s": tokens / seconds,
        "x_transformers": None if base is None else tokens / seconds / base,
        "ms_per_step": 1e3 * seconds / steps,
        "tokens_per_forward": sum(one.tokens_per_forward for one in stats) / len(stats),
        "rows_per_step": rows / steps,
        "forward_ms": 1e3 * timing.target_forward / steps,
        "draft_forward_ms": 1e3 * timing.draft_forward / steps,
        "other_ms": 1e3 * timing.overhead_share * timing.step / steps,
        "equal": None if expected is None else f"{sum(map(int.__eq__, got, expected))}/{len(got)}",
        "warm_up_s": made,
        "answers": got,
    }


def _compared_with(run: Run, batch: int, invariant: bool) -> tuple[float | None, list[int] | None]:
    """Return transformers' best speed in tokens per second, and checksums of plain answers."""
    rows = recorded_rows(run, "end_to_end")
    speeds = [
        row["tokens_per_s"]
        for name in _BASELINES
        if "tokens_per_s" in (row := rows.get(f"batch {batch}, {name}", {}))
    ]
    plain = f"batch {batch}, none{_INVARIANT if invariant else ''}"
    return max(speeds, default=None), rows.get(plain, {}).get("answers")


def engine(setting: Setting, batch: int, name: str, invariant: bool = False) -> LLM:
    """Return an engine with a drafter; memory of earlier ones is given back first."""
    free_memory()
    return LLM(
        setting.target,
        name,
        draft_model=setting.draft() if entry(name).needs_draft_model else None,
        tokenizer=setting.tokenizer,
        max_batch=batch,
        batch_invariant=invariant,
        fixed_shapes=setting.run.fixed_shapes,
    )


def greedy(tokens: int) -> SamplingParams:
    """Return the options of all measured answers.

    Args:
        tokens: Number of new tokens per answer.
    """
    return SamplingParams(max_new_tokens=tokens, ignore_eos=True)
