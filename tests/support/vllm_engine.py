"""Real vLLM engine in a separate process, offline or as an HTTP server.

The model is tiny and has random weights.
"""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2

from tests.support.shared import reference

ROOT = Path(__file__).parents[2]
VOCAB, CONTEXT, EOS = 512, 256, 2
_SECONDS = 600.0  # a server on a busy machine takes long to start
_BLOCK_BYTES = 32 * 2 * 2 * 32 * 4  # tokens, layers, keys and values, dim, float32

HOOK = {
    "method": "custom_class",
    "model": "paceline.integrations.vllm.Proposer",
    "num_speculative_tokens": 6,
}


def environment(ranks: int = 1) -> dict[str, str]:
    """Return the environment of vLLM on this machine: offline, one thread per rank."""
    cores = sorted(os.sched_getaffinity(0))
    ours = {
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "OMP_NUM_THREADS": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "|".join(
            str(cores[rank % len(cores)]) for rank in range(ranks)
        ),
        "PYTHONPATH": str(ROOT),
        "VLLM_LOGGING_LEVEL": "WARNING",
    }
    return {**os.environ, **ours}


def save_tiny(folder: Path) -> Path:
    """Save a Llama with repetitive outputs and a tokenizer of words w3, w4, ..."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=512,
        initializer_range=0.06,
        bos_token_id=1,
        eos_token_id=EOS,
        pad_token_id=0,
    )
    LlamaForCausalLM(config).eval().save_pretrained(folder)
    words = {"<unk>": 0, "<s>": 1, "</s>": EOS, **{f"w{token}": token for token in range(3, VOCAB)}}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="<unk>",
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<unk>",
    ).save_pretrained(folder)
    return folder


def random_prompts(count: int, longest: int = 90, seed: int = 1) -> list[list[int]]:
    rng = random.Random(seed)
    return [
        [rng.randrange(3, VOCAB) for _ in range(rng.randrange(5, longest))] for _ in range(count)
    ]


def greedy(model: Path, prompts: Sequence[list[int]], count: int) -> list[list[int]]:
    """Return the greedy outputs of transformers."""
    import torch
    from transformers import AutoModelForCausalLM

    loaded = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    return [reference(loaded, prompt, count) for prompt in prompts]


def blocks(count: int) -> int:
    """Return the bytes of `count` cache blocks of the tiny model, 32 tokens each."""
    return count * _BLOCK_BYTES


_OFFLINE = """
import json, sys
def main():
    from vllm import LLM, SamplingParams
    given = json.loads(sys.argv[1])
    llm = LLM(**given["engine"])
    params = [SamplingParams(temperature=0, max_tokens=count) for count in given["counts"]]
    prompts = [{"prompt_token_ids": ids} for ids in given["prompts"]]
    outs = llm.generate(prompts, params, use_tqdm=False)
    figures = {one.name: one.value for one in llm.get_metrics() if hasattr(one, "value")}
    answers = [list(out.outputs[0].token_ids) for out in outs]
    print("RESULT " + json.dumps({"answers": answers, "figures": figures}))
if __name__ == "__main__":
    main()
"""


def offline(
    model: Path,
    prompts: Sequence[list[int]],
    counts: Sequence[int],
    spec: Any = None,
    paceline: Any = None,
    **engine: Any,
) -> tuple[list[list[int]], dict[str, float]]:
    """Return the outputs and the metrics of an engine."""
    options = {
        "model": str(model),
        "dtype": "float32",
        "enforce_eager": True,
        "max_model_len": CONTEXT,
        "max_num_seqs": 8,
        "block_size": 32,
        "kv_cache_memory_bytes": blocks(200),
        "disable_log_stats": False,
        "speculative_config": spec,
        "additional_config": {"paceline": paceline or {}},
        **engine,
    }
    given = json.dumps({"engine": options, "prompts": list(prompts), "counts": list(counts)})
    done = subprocess.run(
        [sys.executable, "-c", _OFFLINE, given],
        env=environment(engine.get("tensor_parallel_size", 1)),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=_SECONDS,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert lines, done.stdout[-3000:] + done.stderr[-6000:]
    result = json.loads(lines[0].removeprefix("RESULT "))
    return result["answers"], result["figures"]


@contextmanager
def served(
    model: Path, log: Path, spec: Any = None, paceline: Any = None, *options: str, **variables: str
) -> Iterator[str]:
    """Run a server within the context; yield its URL. Its log is written to a file."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [
        sys.executable,
        "-m",
        "vllm.entrypoints.openai.api_server",
        "--model",
        str(model),
        "--served-model-name",
        "tiny",
        "--dtype",
        "float32",
        "--enforce-eager",
        "--max-model-len",
        str(CONTEXT),
        "--max-num-seqs",
        "8",
        "--block-size",
        "32",
        "--kv-cache-memory-bytes",
        str(blocks(40)),
        "--max-num-batched-tokens",
        "64",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        *([] if spec is None else ["--speculative-config", json.dumps(spec)]),
        *([] if paceline is None else ["--additional-config", json.dumps({"paceline": paceline})]),
        *options,
    ]
    with log.open("w") as file:
        process = subprocess.Popen(
            words,
            env={**environment(), **variables},
            cwd=ROOT,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
        try:
            url = f"http://127.0.0.1:{port}"
            _await(url, process, log)
            yield url
            assert process.poll() is None, f"the server has died: {log.read_text()[-5000:]}"
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(30)


def _await(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + _SECONDS
    while time.monotonic() < until:
        assert process.poll() is None, log.read_text()[-5000:]
        try:
            if httpx2.get(url + "/health", timeout=2.0).status_code == 200:
                return
        except httpx2.HTTPError:
            time.sleep(0.5)
    raise AssertionError(log.read_text()[-5000:])
