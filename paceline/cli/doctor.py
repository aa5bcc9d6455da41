"""The command `paceline doctor`: what is there, what is in use, and what is off and why."""

from __future__ import annotations

import os
import platform
import re
import time
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, requires, version
from typing import TYPE_CHECKING, Annotated

from rich.table import Table
from rich.text import Text

from paceline import __version__
from paceline.cli.loading import build_llm
from paceline.cli.options import only
from paceline.cli.show import out, table_console
from paceline.errors import ConfigError
from paceline.util import cache
from paceline.util.machine import instruction_flags, processor, usable_cores
from paceline.util.options import ModelOptions

if TYPE_CHECKING:
    from paceline.invariance.probe_report import ProbeReport
    from paceline.llm import LLM
    from paceline.util.stopwatch import Conditions

_COST_CURVE = "PACELINE_COST_CURVE"
_PACKAGES = ("torch", "transformers", "tokenizers", "numba", "numpy")
_SETTINGS = ("OMP_", "MKL_", "ONEDNN_", "DNNL_", "ATEN_", "KMP_", "CUDA_VISIBLE_DEVICES", "NUMBA_")


def doctor(
    *,
    model: str | None = None,
    models: Annotated[ModelOptions, only("dtype", "device", "threads")] = ModelOptions(),
    measure: bool = False,
) -> None:
    """Say what is installed, what the processor has, and, for a model, what is in use, what is off,
    and why.

    Args:
        model: directory, hub id, GGUF file, "demo" or "smollm2"; default: none is looked at.
        measure: measure anew what a forward costs, and keep that. Needs a model, and a quiet
            machine.
    """
    if measure and model is None:
        raise ConfigError(
            "doctor: got --measure without a model; expected one, as in `paceline doctor --model"
            " demo --measure`."
        )
    if model is None:
        _print(_installation() | _machine(models.threads))
        return
    llm = build_llm(replace(models, model=model, batch_invariant="auto"), "none")
    if measure and llm.costs is not None:
        llm.costs.measure()
    _print(_installation() | _machine(models.threads) | _facts(model, llm))
    if llm.invariance.proof is not None:
        _print_findings(llm.invariance.proof)


def _installation() -> dict[str, str]:
    """Versions, optional parts, and what is kept on disk."""
    versions = {name: _version(name) for name in _PACKAGES}
    return {
        "paceline": __version__,
        "python": f"{platform.python_version()} on {platform.platform()}",
        **versions,
        **_extras(),
        "cache": _cache(),
    }


def _cache() -> str:
    try:
        kept = cache.entries()
    except cache.CacheError as error:
        return str(error)
    return f"{cache.root()}: {len(kept)} folders, {sum(entry.size for entry in kept) / 1e6:.1f} MB"


def _machine(threads: int | None) -> dict[str, str]:
    """Processor, accelerator, and what chooses kernels."""
    import torch

    from paceline.cli.loading import use_threads

    use_threads(threads)
    settings = " ".join(
        f"{name}={value}"
        for name, value in sorted(os.environ.items())
        if name.startswith(_SETTINGS)
    )
    flags = instruction_flags()
    backends = torch.backends
    return {
        "processor": processor(),
        "instructions": " ".join(flags) or "unknown",
        "bfloat16, float16": _half_precision(flags),
        "kernels of torch": f"{backends.cpu.get_cpu_capability()}, oneDNN"
        f" {'on' if backends.mkldnn.enabled else 'off'}",
        "cores": f"{usable_cores()} for this process, {torch.get_num_threads()} threads of torch",
        "accelerator": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
        "settings": settings or "none",
    }


def _half_precision(flags: list[str]) -> str:
    found = [
        name
        for name in flags
        if name in ("avx512_bf16", "amx_bf16", "avx512_fp16", "bf16", "asimdhp")
    ]
    return (
        f"products by {', '.join(found)}"
        if found
        else "no instructions for products; they are computed in float32"
    )


def _extras() -> dict[str, str]:
    """Whether the packages of each optional part are there."""
    try:
        lines = requires("paceline") or []
    except PackageNotFoundError:
        return {"optional parts": "unknown, as paceline is not installed as a package"}
    parts: dict[str, list[str]] = {}
    for line in lines:
        if match := re.match(r"([\w.-]+).*;.*extra == ['\"](\w+)['\"]", line):
            parts.setdefault(match[2], []).append(match[1])
    result = {}
    for part, packages in parts.items():
        missing = sorted(
            {name for name in packages if name != "paceline" and _version(name) == "not installed"}
        )
        result[f"paceline[{part}]"] = f"off: no {', '.join(missing)}" if missing else "there"
    return result


def _facts(model: str, llm: LLM) -> dict[str, str]:
    """What a model is and how it is used."""
    facts, loaded = llm.model.architecture, llm.model.model
    drafts = (
        "trees and chains"
        if facts.takes_trees
        else "chains only: its positions are places in the cache"
    )
    attention = (
        "by position, batch-invariant"
        if facts.by_position
        else "SDPA, with the cache read once for a tree"
        if facts.tree_attention
        else f"the model's own ({loaded.config._attn_implementation})"
    )
    return {
        "model": f"{model}: {facts.name}, {loaded.num_parameters() / 1e6:.1f} M parameters,"
        f" {facts.layers} layers",
        "computes in": f"{str(facts.dtype).removeprefix('torch.')} on {llm.model.device}",
        "context": f"{llm.max_length} tokens",
        "drafts": drafts,
        "attention": attention,
        "matrix products": _products(llm),
        "cost of a forward": _costs(llm),
        "batch invariance": f"{'on' if llm.invariance.on else 'off'}: {llm.invariance.reason}",
    }


def _products(llm: LLM) -> str:
    """Whose they are, and what both take."""
    from paceline.cpu.linear.choice import COUNTS, trial

    used = llm.model.products
    if used.fixed:
        return f"torch's, always of {used.fixed} rows"
    whose = (
        "torch's"
        if not used.modules
        else f"ours with {_run(used.least, None if used.most > COUNTS[-1] else used.most)} rows"
    )
    tried = trial(llm.model.model)
    if not tried.ours:
        return f"{whose}: ours are for plain weights on a CPU"
    each = zip(COUNTS, tried.ours, tried.torchs, strict=True)
    times = ", ".join(
        f"{mine * 1e3:.3g} and {theirs * 1e3:.3g} with {count}" for count, mine, theirs in each
    )
    conditions = "" if tried.conditions is None else f"; {_conditions(tried.conditions)}"
    return f"{whose}; ms of ours and torch's by rows: {times}{conditions}"


def _costs(llm: LLM) -> str:
    """The cost curve that is kept, and how far it can be trusted."""
    assert llm.costs is not None, "no ranks"
    if llm.costs.given:
        return f"given by ${_COST_CURVE}"
    known = llm.costs.recall()
    if known is None:
        return "not measured yet; --measure does it now, and the first draft does it otherwise"
    curve = known.curve
    shown = sorted({1, curve.rows[-1], *({4, 8, 16, 32, 64} & set(curve.rows))})
    first, *others = (curve.seconds[curve.rows.index(rows)] for rows in shown)
    times = ", ".join(
        f"{rows} {seconds / first:.2f}x" for rows, seconds in zip(shown[1:], others, strict=True)
    )
    return f"1 row {first * 1e3:.3g} ms, {times}; {_conditions(known.conditions)}"


def _conditions(timed: Conditions) -> str:
    """Age, spread and load of a timing, and what follows."""
    hours = max(0.0, time.time() - timed.made) / 3600
    age = (
        f"{hours * 60:.0f} minutes"
        if hours < 2
        else f"{hours:.0f} hours"
        if hours < 48
        else f"{hours / 24:.0f} days"
    )
    waited = "" if timed.waited is None else f", {timed.waited:.0%} of the time without a processor"
    load = "" if timed.load is None else f", load {timed.load:.1f}"
    state = "quiet" if timed.quiet else "disturbed: measured again once the machine is quiet"
    return f"measured {age} ago, quartiles {timed.spread:.1%} apart{waited}{load}: {state}"


def _print(facts: dict[str, str]) -> None:
    width = max(map(len, facts))
    for name, value in facts.items():
        out.print(Text(f"{name:{width}}  {value}"))


def _print_findings(proof: ProbeReport) -> None:
    """The classes of row counts, module by module."""
    table = Table(box=None, pad_edge=False)
    for heading in ("module", "in -> out", "how many", "rows tried", "rows that agree bit for bit"):
        table.add_column(heading, overflow="fold")
    for found in proof.findings:
        ends = [*(start - 1 for start in found.runs[1:]), None]
        runs = ", ".join(_run(start, end) for start, end in zip(found.runs, ends, strict=True))
        table.add_row(found.name, found.shape, str(found.times), f"1 to {found.tried}", runs)
    (table_console() or out).print(table)
    out.print(
        Text(
            f"found in {proof.seconds:.1f} s; kept for this machine, these versions, threads and"
            " shapes"
        )
    )


def _run(start: int, end: int | None) -> str:
    return (
        f"{start} and more" if end is None else str(start) if end == start else f"{start} to {end}"
    )


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"
