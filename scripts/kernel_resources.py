"""List registers, spills and shared memory of the Triton kernel, as a Markdown table.

    python scripts/kernel_resources.py [--capabilities 80,90] [--dims 64,128,256]

The script needs triton, but no GPU. Each row is one program, compiled for one kind of GPU, dtype
and head size. A program spills if its numbers exceed the registers, so that a thread stores some in
the GPU's memory.
"""

from __future__ import annotations

import argparse
import itertools
import re
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from paceline.attention.settings import (
    ALIGNMENT,
    COMBINE_WARPS,
    KEYS_PER_SPLIT,
    QUERIES_PER_PROGRAM,
    SPLITS_AT_ONCE,
)
from paceline.attention.triton_kernel import launch_of
from paceline.attention.triton_programs import attend_split, combine_splits

KINDS = {"bf16": 2, "fp16": 2, "fp32": 4}  # bytes per number of Triton's types
_POINTERS = {"partial": "*fp32", "table": "*i32"}
_SUFFIXES = ("_row", "_head", "_column", "_place")


@dataclass(frozen=True, slots=True)
class Resources:
    """Resources of a compiled program.

    Attributes:
        program: Name of the program.
        kind: Type of queries, keys and values, in Triton's spelling.
        dim: Head size.
        capability: Compute capability of the GPU, times ten.
        registers: Registers per thread.
        stack: Bytes of a thread's stack; 0 = no spills.
        local: Number of instructions that access the stack.
        shared: Bytes of shared memory per program.
        products: Number of instructions that run on tensor cores.
    """

    program: str
    kind: str
    dim: int
    capability: int
    registers: int
    stack: int
    local: int
    shared: int
    products: int


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--capabilities", default="80,90")
    parser.add_argument("--dims", default="64,128,256")
    args = parser.parse_args()
    capabilities, dims = (
        [int(word) for word in words.split(",")] for words in (args.capabilities, args.dims)
    )
    names = [name.replace("_", " ") for name in Resources.__slots__]
    print("| " + " | ".join(names) + " |\n" + "|---" * len(names) + "|")
    for kind, dim, capability in itertools.product(KINDS, dims, capabilities):
        for found in resources(kind, dim, capability):
            cells = (str(getattr(found, name)) for name in Resources.__slots__)
            print("| " + " | ".join(cells) + " |", flush=True)


def resources(kind: str, dim: int, capability: int) -> Iterator[Resources]:
    """Compile both programs of the kernel, the first one with and without a soft cap.

    Args:
        kind: Type of queries, keys and values, as Triton spells it.
        dim: Head size, a power of two.
        capability: Compute capability of the GPU, times ten.
    """
    launch = launch_of(KINDS[kind], dim)
    for capped in (False, True):
        constants: dict[str, Any] = {
            "dim": dim,
            "value_dim": dim,
            "DIMS": dim,
            "VALUE_DIMS": dim,
            "QUERIES": QUERIES_PER_PROGRAM,
            "KEYS": launch.keys,
            "SPLIT": KEYS_PER_SPLIT,
            "STAGES": launch.stages,
            "CAPPED": capped,
            "ALIGNMENT": ALIGNMENT,
        }
        made = _compiled(attend_split, kind, capability, launch.warps, constants)
        name = "attend_split, capped" if capped else "attend_split"
        yield _measured(made, name, kind, dim, capability)
    constants = {
        "out_dim": dim,
        "VALUE_DIMS": dim,
        "SPLIT": KEYS_PER_SPLIT,
        "AT_ONCE": SPLITS_AT_ONCE,
        "SINKS": True,
    }
    made = _compiled(combine_splits, kind, capability, COMBINE_WARPS, constants)
    yield _measured(made, "combine_splits", kind, dim, capability)


def _compiled(
    kernel: Any, kind: str, capability: int, warps: int, constants: dict[str, Any]
) -> Any:
    signature = {
        one.name: _type(one.name, kind) for one in kernel.params if one.name not in constants
    }
    pointers = [one.num for one in kernel.params if signature.get(one.name, "").startswith("*")]
    source = ASTSource(
        kernel,
        signature | dict.fromkeys(constants, "constexpr"),
        constants,
        {(number,): [["tt.divisibility", 16]] for number in pointers},
    )
    options = {"num_warps": warps, "num_stages": 1, "enable_fp_fusion": False}
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)


def _type(name: str, kind: str) -> str:
    if name in ("query", "key", "value", "sinks", "out"):
        return f"*{kind}"
    if name in ("scaling", "softcap"):
        return "fp32"
    return _POINTERS.get(name, "i64" if name.endswith(_SUFFIXES) else "i32")


def _measured(made: Any, program: str, kind: str, dim: int, capability: int) -> Resources:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        Path(file.name).write_bytes(made.asm["cubin"])
        usage, code = (_dump(option, file.name) for option in ("-res-usage", "-sass"))
    used = re.search(r"REG:(\d+) STACK:(\d+)", usage)
    assert used, usage
    return Resources(
        program,
        kind,
        dim,
        capability,
        int(used[1]),
        int(used[2]),
        len(re.findall(r"\b(?:LDL|STL)\b", code)),
        made.metadata.shared,
        len(re.findall(r"\bH?G?MMA\.", code)),
    )


def _dump(option: str, path: str) -> str:
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    done = subprocess.run([tool, option, path], capture_output=True, text=True, check=True)
    return done.stdout + done.stderr


if __name__ == "__main__":
    main()
