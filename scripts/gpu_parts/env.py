"""Part env: the machine, its versions and the cost of the smallest operations."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import subprocess
import sys
from collections.abc import Iterator

import torch
from torch import nn

from gpu_parts.carry import missing
from gpu_parts.clock import device_ms, host_ms, wait, wall_ms
from gpu_parts.run import Case, Run, Values
from paceline import LLM, SamplingParams, demo
from paceline.bench.environment import look_around
from paceline.core.settings import BatchInvariant

_PACKAGES = ("numpy", "numba", "triton", "tokenizers", "safetensors", "pytest", "flash-attn")
_LAUNCHES = 1000


def cases(run: Run) -> Iterator[Case]:
    """Describe the machine and time the smallest operations."""
    yield Case("versions", lambda: _versions(run))
    if run.on_cuda:
        yield Case("card", lambda: _card(run))
    yield Case("copy", lambda: _copy(run))
    yield Case("small operations", lambda: _small(run))
    yield Case("matrix products", lambda: _products(run))
    yield Case("cuDNN in SDPA", lambda: _cudnn(run))
    yield Case("doctor", _doctor)


def _versions(run: Run) -> Values:
    facts = dataclasses.asdict(look_around(run.device))
    versions = facts.pop("versions")
    for name in _PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = None
    kept = ("date", "commit", "modified", "platform", "processor", "cores", "threads")
    return {**{name: facts[name] for name in kept}, **versions, "missing": missing()}


def _card(run: Run) -> Values:
    properties = torch.cuda.get_device_properties(run.device)
    free, total = torch.cuda.mem_get_info(run.device)
    query = "driver_version,clocks.max.sm,clocks.max.memory,power.limit,pcie.link.gen.current"
    shown = subprocess.run(
        ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    return {
        "name": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "multiprocessors": properties.multi_processor_count,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),  # type: ignore[no-untyped-call]
        "free_gib": free / 2**30,
        "total_gib": total / 2**30,
        query: shown.stdout.strip() or shown.stderr.strip()[:200],
    }


def _copy(run: Run) -> Values:
    source = torch.empty(run.sizes.copy_bytes, dtype=torch.uint8, device=run.device)
    target = torch.empty_like(source)
    taken = wall_ms(lambda: target.copy_(source), run.device, run.sizes.repeats)
    return {"tb_per_s_read_and_written": 2 * len(source) / taken / 1e9}


def _small(run: Run) -> Values:
    device, repeats = run.device, run.sizes.repeats
    one = torch.zeros(1, device=device)
    ids = torch.zeros(8, dtype=torch.long)
    pinned = ids.pin_memory() if run.on_cuda else ids
    there = torch.zeros(8, dtype=torch.long, device=device)

    def launches() -> None:
        for _ in range(_LAUNCHES):
            one.add_(1)

    launch = host_ms(launches, device, 3) / _LAUNCHES
    result: Values = {"launch_us": 1e3 * launch, "launches_us": None}
    on_device = device_ms(lambda: one.add_(1), device, repeats)
    result["launches_us"] = None if on_device is None else 1e3 * on_device
    calls = {
        "item_us": one.item,
        "copy_up_us": lambda: ids.to(device),
        "copy_up_pinned_us": lambda: there.copy_(pinned, non_blocking=True),
        "copy_down_us": there.cpu,
        "index_by_list_us": lambda: there[[1, 2, 3]],
        "tensor_from_list_us": lambda: torch.tensor([1, 2, 3], device=device),
    }
    for name, call in calls.items():
        result[name] = 1e3 * wall_ms(call, device, 10 * repeats)
    result["wait_us"] = 1e3 * wall_ms(lambda: wait(device), device, 10 * repeats)
    return result


def _products(run: Run) -> Values:
    """Time a product as large as a feed-forward layer of an 8-billion model, by rows."""
    rows, columns = (14336, 4096) if run.on_cuda else (256, 128)
    linear = nn.Linear(columns, rows, bias=False, device=run.device, dtype=run.dtype)
    result: Values = {}
    with torch.inference_mode():
        for count in (1, 8, 16, 64, 128, 256, 512, 2048):
            states = torch.randn(count, columns, device=run.device, dtype=run.dtype)

            def product(states: torch.Tensor = states) -> torch.Tensor:
                return linear(states)  # type: ignore[no-any-return]

            taken = device_ms(product, run.device, run.sizes.repeats)
            if taken is None:
                taken = wall_ms(product, run.device, run.sizes.repeats)
            result[f"us_{count}"] = 1e3 * taken
    return result


def _cudnn(run: Run) -> Values:
    """Record whether SDPA may use cuDNN before, inside and after our forward passes."""

    def allowed() -> bool:
        return bool(torch.backends.cuda.cudnn_sdp_enabled())  # type: ignore[no-untyped-call]

    before, inside = allowed(), []
    invariant: BatchInvariant = "auto" if run.on_cuda else False  # the check takes long on a CPU
    llm = LLM(demo.TARGET, "none", device=str(run.device), batch_invariant=invariant)
    loaded = allowed()
    handle = llm.model.model.register_forward_pre_hook(lambda *_: inside.append(allowed()))
    llm.generate(["def add(a, b):"], SamplingParams(max_new_tokens=4))
    handle.remove()
    return {
        "allowed_at_import": before,
        "allowed_after_load": loaded,
        "allowed_in_forwards": any(inside),
        "allowed_afterwards": allowed(),
        "batch_invariant": llm.invariance.on,
        "reason": llm.invariance.reason,
    }


def _doctor() -> Values:
    shown = subprocess.run(
        [sys.executable, "-m", "paceline", "doctor"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return {"status": shown.returncode, "log": shown.stdout + shown.stderr}
