"""Implement the command `paceline doctor`."""

from __future__ import annotations

import os
import platform
import re
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, requires, version
from typing import TYPE_CHECKING, Annotated

from rich.table import Table
from rich.text import Text

from paceline import __version__
from paceline.cli.loading import build_llm
from paceline.cli.measured_costs import describe_conditions, describe_costs
from paceline.cli.options import model_argument, only
from paceline.cli.show import out, print_note, table_console
from paceline.errors import ConfigError
from paceline.util import cache
from paceline.util.machine import instruction_flags, processor, usable_cores
from paceline.util.options import ModelOptions
from paceline.util.plurals import counted

if TYPE_CHECKING:
    from paceline.invariance.probe_report import ProbeReport
    from paceline.llm import LLM
    from paceline.model.cached_lm import CachedLM

_PACKAGES = ("torch", "transformers", "tokenizers", "numba", "numpy")
_SETTINGS = ("OMP_", "MKL_", "ONEDNN_", "DNNL_", "ATEN_", "KMP_", "CUDA_VISIBLE_DEVICES", "NUMBA_")


def doctor(
    model: Annotated[
        str | None,
        model_argument(
            "Model to inspect: directory, hub id or GGUF file; 'demo' and 'smollm2' are built-in"
            " models. Default: none."
        ),
    ] = None,
    /,
    *,
    models: Annotated[
        ModelOptions, only("dtype", "device", "threads", "unpack", "engine")
    ] = ModelOptions(),
    measure: bool = False,
) -> None:
    """Report details of the installation, the machine and a model.

    Example: paceline doctor smollm2 --dtype bfloat16

    Args:
        measure: Measure the cost of a forward pass again, and store it. The measurement requires a
            model and an idle machine. A disturbed measurement does not replace a quiet one.
    """
    if measure and model is None:
        raise ConfigError(
            "doctor: --measure needs a model. Add one, as in `paceline doctor demo --measure`."
        )
    if model is None:
        _print(_installation() | _machine(models.threads))
        return
    llm = build_llm(replace(models, model=model, batch_invariant="auto"), "none")
    if measure:
        _measure(llm)
    _print(_installation() | _machine(models.threads) | _facts(model, llm))
    if llm.invariance.report is not None:
        _print_findings(llm.invariance.report)


def _measure(llm: LLM) -> None:
    """Measure forward passes, and report if an earlier measurement is kept."""
    assert llm.costs is not None, "no ranks"
    before = llm.costs.recall()
    if llm.costs.measure() == before:
        print_note("other programs disturbed the measurement, so the earlier, quiet one is kept")


def _installation() -> dict[str, str]:
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
        entries = cache.entries()
    except cache.CacheError as error:
        return str(error)
    return (
        f"{cache.root()}: {len(entries)} folders, {sum(entry.size for entry in entries) / 1e6:.1f}"
        " MB"
    )


def _machine(threads: int | None) -> dict[str, str]:
    """Return information about the processor, the accelerator and library settings."""
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
        "cores": f"{usable_cores()} for this process, {torch.get_num_threads()} torch threads",
        "accelerator": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
        "settings": settings or "none",
    }


def _half_precision(flags: list[str]) -> str:
    features = [
        name
        for name in flags
        if name in ("avx512_bf16", "amx_bf16", "avx512_fp16", "bf16", "asimdhp")
    ]
    return (
        f"matrix products with {', '.join(features)}"
        if features
        else "no matrix instructions; products are computed in float32"
    )


def _extras() -> dict[str, str]:
    """Describe whether the packages of each optional extra are installed."""
    try:
        lines = requires("paceline") or []
    except PackageNotFoundError:
        return {"optional parts": "unknown: paceline is not installed as a package"}
    parts: dict[str, list[str]] = {}
    for line in lines:
        if match := re.match(r"([\w.-]+).*;.*extra == ['\"]([\w-]+)['\"]", line):
            parts.setdefault(match[2], []).append(match[1])
    result = {}
    for part, packages in parts.items():
        missing = sorted(
            {name for name in packages if name != "paceline" and _version(name) == "not installed"}
        )
        result[f"paceline[{part}]"] = f"off: no {', '.join(missing)}" if missing else "installed"
    return result


def _facts(model: str, llm: LLM) -> dict[str, str]:
    """Return information about a model and about the features that it uses."""
    from paceline.model.cached_lm import CachedLM

    if not isinstance(llm.model, CachedLM):
        return _gguf_facts(model, llm)
    facts, loaded = llm.model.architecture, llm.model.model
    drafts = (
        "trees and chains"
        if facts.takes_trees
        else "chains only: token positions follow cache positions"
    )
    attention = (
        "batch-invariant"
        if facts.by_position
        else "SDPA; one read of the cache per draft tree"
        if facts.tree_attention
        else f"the model's implementation ({loaded.config._attn_implementation})"
    )
    return {
        "model": f"{model}: {facts.name}, {loaded.num_parameters() / 1e6:.1f} M parameters,"
        f" {facts.layers} layers",
        "computes in": f"{str(facts.dtype).removeprefix('torch.')} on {llm.model.device}",
        "context": f"{llm.max_length} tokens",
        "drafts": drafts,
        "attention": attention,
        "matrix products": _products(llm.model),
        "forward-pass cost": describe_costs(llm),
        "batch invariance": f"{'on' if llm.invariance.on else 'off'}: {llm.invariance.details}",
    }


def _gguf_facts(model: str, llm: LLM) -> dict[str, str]:
    """Return information about a model that llama.cpp runs."""
    loaded = llm.model.model
    return {
        "model": f"{model}: {loaded.description}",
        "computes in": f"{loaded.library.version} at {loaded.library.path}",
        "context": f"{llm.max_length} tokens",
        "drafts": "trees and chains" if llm.model.takes_trees else "chains only: recurrent layers",
        "forward-pass cost": describe_costs(llm),
        "batch invariance": f"{'on' if llm.invariance.on else 'off'}: {llm.invariance.details}",
    }


def _products(target: CachedLM) -> str:
    """Name the library that computes matrix products, and give both libraries' times."""
    import torch

    from paceline.backend.settings import TIMED_ROWS
    from paceline.cpu.product_choice import trial

    used = target.products
    if used.fixed_rows:
        return f"torch, always padded to {used.fixed_rows} rows"
    max_rows = None if used.max_rows > TIMED_ROWS[-1] else used.max_rows
    backend = "torch" if not used.modules else f"paceline with {_run(used.min_rows, max_rows)} rows"
    if (helpers := used.num_helpers(1)) is not None:
        backend += f", decoding with {1 + helpers} of {torch.get_num_threads()} threads"
    timing = trial(target.model)
    if not timing.ours:
        return f"{backend}: paceline's kernels need plain weights on a CPU"
    each = zip(TIMED_ROWS, timing.ours, timing.torchs, strict=True)
    times = ", ".join(
        f"{counted(count, 'row')} {own_seconds * 1e3:.3g} and {torch_seconds * 1e3:.3g}"
        for count, own_seconds, torch_seconds in each
    )
    conditions = "" if timing.conditions is None else f"; {describe_conditions(timing.conditions)}"
    return f"{backend}; ms with paceline and with torch: {times}{conditions}"


def _print(facts: dict[str, str]) -> None:
    width = max(map(len, facts))
    for name, value in facts.items():
        out.print(Text(f"{name:{width}}  {value}"))


def _print_findings(proof: ProbeReport) -> None:
    """Print the row counts that yield bit-identical results in each module."""
    table = Table(box=None, pad_edge=False)
    for heading in ("module", "in -> out", "count", "rows tested", "bit-identical rows"):
        table.add_column(heading, overflow="fold")
    for finding in proof.findings:
        ends = [*(start - 1 for start in finding.runs[1:]), None]
        runs = ", ".join(_run(start, end) for start, end in zip(finding.runs, ends, strict=True))
        table.add_row(
            finding.name, finding.shape, str(finding.times), f"1 to {finding.tried}", runs
        )
    (table_console() or out).print(table)
    out.print(
        Text(
            f"measured in {proof.seconds:.1f} s; stored for this machine, these versions, threads"
            " and shapes"
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
