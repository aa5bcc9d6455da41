"""Compare vLLM's own drafters and paceline's inside vLLM's engine.

Each drafter runs in a new engine with one thread, the same prompts and the same K. The first
command uses any environment with paceline[gguf]; the second uses the environment that
scripts/install_vllm makes:

    .venv/bin/python scripts/vllm_bench.py MODEL --save smollm2
    .venv-vllm/bin/python scripts/vllm_bench.py MODEL --result RESULT.json --prompts A.jsonl B.jsonl
    --batch 16
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

HOOK = {"method": "custom_class", "model": "paceline.integrations.vllm.Proposer"}
METHODS: dict[str, Any] = {
    "none": None,
    "vLLM `ngram`": {"method": "ngram", "prompt_lookup_max": 5, "prompt_lookup_min": 2},
    "vLLM `suffix`": {"method": "suffix"},
    "vLLM `suffix`, long": {
        "method": "suffix",
        "suffix_decoding_max_spec_factor": 8.0,
        "suffix_decoding_min_token_prob": 0.0,
    },
    "paceline, full": {"length": "full"},
    "paceline": {"length": "auto"},
    "paceline, store, full": {"length": "full", "store": True},
    "paceline, store": {"length": "auto", "store": True},
}
NUMBERS = {
    "count": 12,
    "every": 0,
    "max-tokens": 64,
    "batch": 1,
    "most": 8,
    "context": 1024,
    "chunk": 1024,
    "cache": 512,
}
HELP = {
    "count": "prompts of a file",
    "every": "take each n-th; 0 = spread over the whole file",
    "batch": "requests at a time",
    "most": "K",
    "chunk": "tokens of a forward (max_num_batched_tokens)",
    "cache": "MiB of keys and values",
}
_DRAFTED, _ACCEPTED = "vllm:spec_decode_num_draft_tokens", "vllm:spec_decode_num_accepted_tokens"
_PREEMPTED = "vllm:num_preemptions"


def work(given: dict[str, Any]) -> None:
    """Answer all prompts with one engine, file by file, and print the result."""
    from vllm import LLM, SamplingParams

    llm = LLM(**given["engine"])
    llm.generate(
        [{"prompt_token_ids": [5, 6, 7, 8] * 4}],
        SamplingParams(temperature=0, max_tokens=8),
        use_tqdm=False,
    )
    params = SamplingParams(temperature=0, max_tokens=given["max_tokens"])
    for name, prompts in given["prompts"].items():
        before, seconds, processor = figures(llm), time.perf_counter(), time.process_time()
        outs = llm.generate([{"prompt_token_ids": ids} for ids in prompts], params, use_tqdm=False)
        seconds, processor = time.perf_counter() - seconds, time.process_time() - processor
        counted = {key: int(value - before[key]) for key, value in figures(llm).items()}
        said = [list(out.outputs[0].token_ids) for out in outs]
        print(
            "RESULT",
            json.dumps(
                {"name": name, "said": said, "seconds": seconds, "processor": processor, **counted}
            ),
        )


def figures(llm: Any) -> dict[str, float]:
    """Return the counters of vLLM that the result stores."""
    found = {one.name: one.value for one in llm.get_metrics() if hasattr(one, "value")}
    names = {"drafted": _DRAFTED, "accepted": _ACCEPTED, "preemptions": _PREEMPTED}
    return {key: found.get(name, 0.0) for key, name in names.items()}


def in_a_process(given: dict[str, Any]) -> list[dict[str, Any]]:
    """Run one method in a new process."""
    ours = {
        "OMP_NUM_THREADS": "1",
        "NUMBA_NUM_THREADS": "1",
        "VLLM_CPU_OMP_THREADS_BIND": str(min(os.sched_getaffinity(0))),
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "HF_HUB_OFFLINE": "1",
    }
    words = [sys.executable, __file__, given["engine"]["model"], "--work"]
    done = subprocess.run(
        words, input=json.dumps(given), env={**os.environ, **ours}, capture_output=True, text=True
    )
    if done.returncode:
        sys.exit(done.stdout[-2000:] + done.stderr[-4000:])
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    return [json.loads(line.removeprefix("RESULT ")) for line in lines]


def encoded(options: argparse.Namespace, tokenizer: Any) -> dict[str, list[list[int]]]:
    """Return the token ids of the prompts of each file.

    Prompts leave room for K tokens after the answer, because vLLM drafts only within the
    context.
    """
    from paceline.report.prompts import encode, load_prompts, shortened

    room = options.context - options.max_tokens - options.most - 1
    files = {}
    for path in map(Path, options.prompts):
        every = options.every or max(1, len(load_prompts([path])) // options.count)
        files[path.stem] = load_prompts([path], options.count, every)
    ids = {
        name: [shortened(encode(one, tokenizer), room) for one in found]
        for name, found in files.items()
    }
    return (
        {"all": [one for turn in zip(*ids.values(), strict=True) for one in turn]}
        if options.together
        else ids
    )


def settings(
    options: argparse.Namespace, method: str, tokenizer: Any, store: Path
) -> dict[str, Any]:
    """Return the engine options of a method.

    paceline's drafters get a new store, empty or with recorded answers, which finished answers
    extend.
    """
    from paceline import datastore
    from paceline.recorded_answers.reading import read_answers

    spec, ours = METHODS[method], {}
    if spec is not None and "length" in spec:
        if "store" in spec:
            answers = read_answers(options.answers)
            datastore.build(
                store, [one.output_ids for one in answers], len(tokenizer), tokenizer=tokenizer
            )
        ours = {
            "drafter": f"sssd:datastore={store},update_datastore=true",
            "length": spec["length"],
        }
        spec = HOOK
    return {
        "model": options.model,
        "dtype": options.dtype,
        "enforce_eager": True,
        "max_model_len": options.context,
        "max_num_seqs": options.batch,
        "block_size": 32,
        "kv_cache_memory_bytes": options.cache << 20,
        "max_num_batched_tokens": options.chunk,
        "disable_log_stats": False,
        "additional_config": {"paceline": ours},
        "speculative_config": spec and {**spec, "num_speculative_tokens": options.most},
    }


def measured(options: argparse.Namespace, folder: Path) -> Any:
    """Return the result of all methods."""
    import torch
    from transformers import AutoTokenizer
    from vllm_results import VllmResult, VllmRun

    from paceline.bench.environment import load_average, look_around

    torch.set_num_threads(1)
    environment = look_around(torch.device("cpu"))
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    prompts = encoded(options, tokenizer)
    parts: list[VllmRun] = []
    plain: dict[str, list[list[int]]] = {}
    for number, method in enumerate(options.methods):
        engine = settings(options, method, tokenizer, folder / f"store{number}")
        for one in in_a_process(
            {"engine": engine, "prompts": prompts, "max_tokens": options.max_tokens}
        ):
            name, said = one.pop("name"), one.pop("said")
            equal = sum(
                ours == first
                for ours, first in zip(said, plain.setdefault(name, said), strict=True)
            )
            parts.append(VllmRun(method, name, len(said), sum(map(len, said)), equal=equal, **one))
            print(
                method,
                parts[-1],
                f"accepted per step {parts[-1].accepted_per_step:.3f}",
                flush=True,
            )
    environment = replace(environment, load_end=load_average())
    counts = options.batch, options.most, options.max_tokens
    return VllmResult(options.name, "0.32.0", options.dtype, *counts, environment, parts)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", help="folder of the model, which --save writes")
    parser.add_argument("--save", help="name of a model of paceline, such as smollm2")
    parser.add_argument("--result", help="JSON file to write")
    parser.add_argument("--prompts", nargs="+", default=[])
    parser.add_argument(
        "--answers",
        default="scripts/data/smollm2-answers.jsonl",
        help="recorded answers for the store",
    )
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=[*METHODS])
    parser.add_argument("--name", default="SmolLM2-135M-Instruct")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument(
        "--together",
        action="store_true",
        help="all files at once, one prompt of each after the other",
    )
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    for name, default in NUMBERS.items():
        parser.add_argument(f"--{name}", type=int, default=default, help=HELP.get(name))
    options = parser.parse_args()
    if options.work:
        work(json.load(sys.stdin))
    elif options.save:
        from paceline import LLM

        llm = LLM(options.save, "none")
        llm.model.model.save_pretrained(options.model)
        llm.tokenizer.save_pretrained(options.model)
    else:
        from vllm_results import write_vllm

        with tempfile.TemporaryDirectory() as folder:
            write_vllm(measured(options, Path(folder)), options.result)


if __name__ == "__main__":
    main()
