"""Read the command line and run the parts."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import time
import traceback
import warnings
from collections.abc import Sequence
from pathlib import Path

import torch
from transformers.utils import logging

from gpu_parts.carry import advice
from gpu_parts.prediction import CARDS, predict
from gpu_parts.run import DeviceLost, Run, run_part, say
from gpu_parts.settings import FULL, SMOKE
from gpu_parts.summary import write_summary

PARTS = ("env", "attention", "exact", "forward", "graph", "end_to_end", "profile", "tests")
_MINUTES = 9.0


def main(arguments: Sequence[str], description: str = "") -> int:
    """Run the parts; return 0 if all are finished.

    Args:
        arguments: Arguments of the command line.
        description: Text of the help.
    """
    options = _parser(description).parse_args(arguments)
    if options.list_carry:
        print(advice())
        return 0
    if options.predict:
        print("\n".join(predict(options.predict, options.out)))
        return 0
    if options.summary:
        write_summary(options.out, PARTS, options.summary)
        return 0
    warnings.filterwarnings("ignore")
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    start, run = time.monotonic(), _run(options)
    unfinished = []
    for part in options.parts or PARTS:
        if options.again:
            (run.out / f"{part}.json").unlink(missing_ok=True)
        try:
            finished = run_part(part, importlib.import_module(f"gpu_parts.{part}").cases, run)
        except DeviceLost as error:
            say(f"The device is lost ({error}); a new process goes on.")
            _start_over(arguments, (run.deadline - time.monotonic()) / 60)
        except Exception:
            finished = False
            traceback.print_exc()
            sys.stderr.flush()
        if not finished:
            unfinished.append(part)
    state = f"Not finished: {', '.join(unfinished)}" if unfinished else "Finished"
    say(f"{state}, after {time.monotonic() - start:.0f} s. Results: {run.out}")
    return 1 if unfinished else 0


def _parser(description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)}; default: all")
    add("--smoke", action="store_true", help="tiny sizes, on the CPU")
    out = Path(os.environ.get("OUT", "gpu-day"))
    add("--out", type=Path, default=out, help="folder of the JSON files; default $OUT or ./gpu-day")
    add("--again", action="store_true", help="repeat measurements that have values")
    add("--keep-errors", action="store_true", help="do not repeat measurements that failed")
    help_minutes = f"no measurement starts later; default {_MINUTES:g}"
    add("--no-graphs", action="store_true", help="run targets without fixed shapes")
    add("--minutes", type=float, default=_MINUTES, help=help_minutes)
    add(
        "--model",
        default="demo",
        help="target of the part end_to_end: directory, hub id or GGUF file; default: the embedded"
        " model, enlarged to --scale",
    )
    add("--draft-model", help="draft model of --model; default: none")
    add("--scale", help="WIDTHxLAYERS of the target of the part end_to_end")
    add("--summary", type=Path, metavar="FILE", help="write the results in --out as one file")
    cards = ", ".join(CARDS)
    add("--predict", metavar="CARD", help=f"predict times and speeds without a GPU: {cards}")
    add("--list-carry", action="store_true", help="list packages to bring along")
    return parser


def _run(options: argparse.Namespace) -> Run:
    """Return the options of a run.

    Raises:
        SystemExit: There is no GPU, or a part has another name.
    """
    if unknown := set(options.parts) - set(PARTS):
        raise SystemExit(f"There is no part {sorted(unknown)[0]!r}. Parts: {', '.join(PARTS)}.")
    if options.smoke:
        torch.set_num_threads(1)
    elif not torch.cuda.is_available():
        raise SystemExit("torch finds no GPU. To see that the script runs, pass --smoke.")
    sizes, is_demo = SMOKE if options.smoke else FULL, options.model == "demo"
    return Run(
        device=torch.device("cpu" if options.smoke else "cuda"),
        dtype=torch.float32 if options.smoke else torch.bfloat16,
        sizes=sizes,
        out=options.out,
        deadline=time.monotonic() + 60 * options.minutes,
        keep_errors=options.keep_errors,
        fixed_shapes=False if options.no_graphs else "auto",
        model=options.model,
        draft_model=options.draft_model or ("demo" if is_demo else None),
        scale=options.scale or (sizes.scale if is_demo else None),
    )


def _start_over(arguments: Sequence[str], minutes: float) -> None:
    """Replace this process by a new one that skips the measurement that failed."""
    kept = [argument for argument in arguments if argument != "--again"]
    script = str(Path(__file__).parents[1] / "gpu_day.py")
    limits = ["--keep-errors", "--minutes", f"{minutes:.2f}"]
    os.execv(sys.executable, [sys.executable, "-u", script, *kept, *limits])
