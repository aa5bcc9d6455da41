"""Check an installed paceline outside its checkout.

`scripts/package` runs this script with the folder of the environment.
"""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path

import paceline
from paceline import LLM, SamplingParams, demo
from paceline.drafters import available, entry

# all that is embedded is read
DRAFTERS = ("prompt_lookup", "sssd:datastore=demo", "draft_model", "specdec_pp")


def main(environment: str) -> None:
    assert Path(environment).resolve() in Path(paceline.__file__).resolve().parents, (
        f"the checkout was imported: {paceline.__file__}"
    )
    assert importlib.metadata.version("paceline") == paceline.__version__
    shipped = {str(path) for path in importlib.metadata.files("paceline") or ()}
    for licence in ("LICENSE", "GPTeacher.txt", "grade-school-math.txt", "Python.txt"):
        assert any("dist-info/licenses" in path and path.endswith(licence) for path in shipped), (
            f"no licence {licence}"
        )
    for name in available():
        entry(name).load()
    params = SamplingParams(max_new_tokens=16)
    prompts = ["def add(a, b):", "What is 3 times 4?"]
    plain = [
        out.token_ids for out in LLM(demo.TARGET, "none", dtype="float32").generate(prompts, params)
    ]
    for spec in DRAFTERS:
        draft = demo.DRAFT if entry(spec.partition(":")[0]).needs_draft_model else None
        outs = LLM(demo.TARGET, drafter=spec, draft_model=draft, dtype="float32").generate(
            prompts, params
        )
        assert [out.token_ids for out in outs] == plain, spec


if __name__ == "__main__":
    main(sys.argv[1])
