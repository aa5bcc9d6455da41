"""Try every decoder type of the installed transformers with tiny random weights.

    python scripts/survey_models.py [--types llama,mamba2] [--json FILE]

For each type, answers with random draft trees, with drafts that hide the right tokens behind wrong
ones, and without drafts are compared with those of `generate`, in float32. Each type runs in a
process of its own. The table on the page "Supported models" shows the results. The whole run takes
half an hour on one core.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, TimeoutError
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict
from pathlib import Path

import torch
import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))  # the tests are not installed
from tests.support.survey import WRONG, Surveyed, survey  # noqa: E402

RESULTS = ROOT / "docs" / "results" / "model-survey.json"
TIMEOUT_S = 300.0


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--types", default=",".join(sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)))
    parser.add_argument("--json", type=Path, default=RESULTS)
    args = parser.parse_args()
    rows = {row["model_type"]: row for row in _known(args.json)}
    for result in surveyed(args.types.split(",")):
        print(f"{result.model_type:28s} {result.outcome:10s} {result.reason[:120]}", flush=True)
        rows[result.model_type] = asdict(result)
    content = {
        "schema": 1,
        "kind": "model-survey",
        "versions": {"transformers": transformers.__version__, "torch": torch.__version__},
        "rows": [rows[name] for name in sorted(rows)],
    }
    args.json.write_text(json.dumps(content, indent=0) + "\n")


def _known(path: Path) -> list[dict[str, str]]:
    """Return the results of an earlier run with the same version of transformers."""
    if not path.exists():
        return []
    content = json.loads(path.read_text())
    same = content["versions"]["transformers"] == transformers.__version__
    rows: list[dict[str, str]] = content["rows"]
    return rows if same else []


def surveyed(types: list[str]) -> Iterator[Surveyed]:
    """Yield the result of each type; a type that ends its process counts as wrong."""
    context = multiprocessing.get_context("fork")
    for model_type in types:
        with ProcessPoolExecutor(1, mp_context=context, initializer=_set_up) as pool:
            try:
                yield pool.submit(survey, model_type).result(TIMEOUT_S)
            except BrokenProcessPool:
                yield Surveyed(model_type, WRONG, "the process ended")
            except TimeoutError:
                yield Surveyed(model_type, WRONG, f"no result after {TIMEOUT_S:.0f} s")
                for process in (pool._processes or {}).values():
                    process.kill()


def _set_up() -> None:
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()


if __name__ == "__main__":
    main()
