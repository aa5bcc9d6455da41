"""Compare paceline with llama.cpp on the same GGUF file, prompts and threads.

llama.cpp runs in a separate virtual environment:

    python -m venv LLAMA && LLAMA/bin/pip install xllamacpp
    python scripts/compare_llama_cpp.py LLAMA/bin/python [--model FILE] [--out RESULT.json]

Each method decodes greedily in a separate process. The processes take turns with each group of
prompts, so other load on the machine affects all methods. The start-up time ends with the first
token of a new process.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

KIND = "paceline-llama-cpp"
LLAMA, OURS = "llama.cpp", "paceline"
_CONTEXT = 2048  # tokens of a request
_MEGABYTE = 1e6


def serve_llama(options: argparse.Namespace) -> None:
    """Answer groups of prompts from standard input with llama.cpp."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path, params.n_parallel, params.verbosity = options.model, options.batch, -1
    params.n_ctx = _CONTEXT * options.batch
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = options.threads
    if options.method != "none":
        kinds = xllamacpp.common_speculative_type
        kind = getattr(kinds, f"COMMON_SPECULATIVE_TYPE_{options.method.replace('-', '_').upper()}")
        params.speculative.types = [kind]
        params.speculative.draft.mparams.path = options.draft or ""
    server = xllamacpp.Server(params)

    def answer(prompt: list[int], count: int) -> dict[str, Any]:
        reply = server.handle_completions(
            {"prompt": prompt, "n_predict": count, "temperature": 0, "cache_prompt": False}
        )
        text = reply["choices"][0]["text"]
        return {"text": text, "tokens": reply["usage"]["completion_tokens"]}

    def answer_all(prompts: list[list[int]], count: int) -> list[dict[str, Any]]:
        with ThreadPoolExecutor(len(prompts)) as pool:
            return list(pool.map(lambda prompt: answer(prompt, count), prompts))

    version = f"xllamacpp {xllamacpp.__version__}, {xllamacpp.get_system_info().strip()}"
    _serve(answer_all, version)


def serve_ours(options: argparse.Namespace) -> None:
    """Answer groups of prompts from standard input with paceline."""
    import torch

    torch.set_num_threads(options.threads)
    from paceline import LLM, SamplingParams, __version__

    llm = LLM(options.model, options.method, max_batch=options.batch, device="cpu")

    def answer_all(prompts: list[list[int]], count: int) -> list[dict[str, Any]]:
        outs = llm.generate(prompts, SamplingParams(count))
        return [{"text": out.text, "tokens": len(out.token_ids)} for out in outs]

    # As in `paceline serve`, the check of cached costs does not delay an answer.
    _serve(answer_all, f"paceline {__version__}", llm.check_loaded_costs)


def _serve(answer_all: Any, version: str, prepare: Callable[[], None] = lambda: None) -> None:
    """Answer groups of prompts; run `prepare` before the reply to the first group."""
    answer_all([[1, 2, 3]], 1)
    _reply({"version": version, "processor": time.process_time()})
    for number, line in enumerate(sys.stdin):
        request = json.loads(line)
        start, processor = time.perf_counter(), time.process_time()
        reply = {
            "answers": answer_all(request["prompts"], request["count"]),
            "seconds": time.perf_counter() - start,
            "processor": time.process_time() - processor,
        }
        if not number:
            prepare()
        _reply(reply)


def _reply(content: dict[str, Any]) -> None:
    print(json.dumps(content), file=_ANSWERS, flush=True)


_ANSWERS = sys.stdout  # llama.cpp's own lines go to standard error


class Server:
    """A process that answers with one method.

    Args:
        process: The process.
        started: Time at which it was started, by `time.perf_counter`.
    """

    def __init__(self, process: subprocess.Popen[str], started: float) -> None:
        self._process = process
        self.about = self._read()
        self.startup = {
            "seconds": time.perf_counter() - started,
            "processor": self.about["processor"],
        }
        self.tokens, self.seconds, self.processor = 0, 0.0, 0.0
        self.texts: list[str] = []

    def ask(self, prompts: list[list[int]], count: int, is_timed: bool) -> None:
        """Answer a group of prompts; add to the sums if `is_timed`."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"prompts": prompts, "count": count}) + "\n")
        self._process.stdin.flush()
        reply = self._read()
        if is_timed:
            self.tokens += sum(answer["tokens"] for answer in reply["answers"])
            self.seconds += reply["seconds"]
            self.processor += reply["processor"]
            self.texts += [answer["text"] for answer in reply["answers"]]

    def peak_bytes(self) -> int:
        """Return the maximum resident memory of the process."""
        status = Path(f"/proc/{self._process.pid}/status").read_text(encoding="utf-8")
        line = next(line for line in status.splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        while line := self._process.stdout.readline():
            if line.startswith("{"):  # llama.cpp may print other lines
                content: dict[str, Any] = json.loads(line)
                return content
        raise SystemExit(f"{self._process.args!r}: ended without an answer")


@contextmanager
def running(options: argparse.Namespace, side: str, method: str) -> Iterator[Server]:
    """Run a server for one method of one side."""
    python = options.python if side == LLAMA else sys.executable
    words = [python, __file__, python, "--side", side, "--method", method]
    words += ["--model", options.model, "--threads", str(options.threads)]
    words += ["--batch", str(options.batch)]
    words += ["--draft", options.draft] if options.draft else []
    started = time.perf_counter()
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            yield Server(process, started)
        finally:
            process.kill()


def measure(options: argparse.Namespace, prompts: list[list[int]]) -> list[dict[str, Any]]:
    """Return the result of each method with `options.threads` and `options.batch`."""
    methods = [(LLAMA, method) for method in options.llama_methods]
    methods += [(OURS, method) for method in options.drafters]
    with ExitStack() as stack:
        servers = [stack.enter_context(running(options, *method)) for method in methods]
        for start in range(0, len(prompts), options.batch):
            group = prompts[start : start + options.batch]
            for server in servers:
                if not start:
                    server.ask(group, 8, is_timed=False)
                server.ask(group, options.count, is_timed=True)
        reference = servers[len(options.llama_methods)].texts
        return [
            {
                "side": side,
                "method": method,
                "version": server.about["version"],
                "threads": options.threads,
                "batch": options.batch,
                "tokens": server.tokens,
                "seconds": server.seconds,
                "processor_seconds": server.processor,
                "equal_answers": sum(map(str.__eq__, server.texts, reference)),
                "startup": server.startup,
                "peak_bytes": server.peak_bytes(),
            }
            for (side, method), server in zip(methods, servers, strict=True)
        ]


def compare(options: argparse.Namespace) -> None:
    """Print and store the results for all numbers of threads and batch sizes."""
    import torch

    from paceline import demo
    from paceline.bench.environment import look_around
    from paceline.model.tokenizer_loading import load_tokenizer
    from paceline.report.prompts import encode, load_prompts

    options.model = str(demo.target_of(options.model))
    tokenizer = load_tokenizer(options.model, options.model, unpack=False)
    prompts = [
        encode(prompt, tokenizer)
        for prompt in load_prompts(options.prompts, options.limit, options.every)
    ]
    rows: list[dict[str, Any]] = []
    for threads in options.all_threads:
        for batch in options.batches:
            options.threads, options.batch = threads, batch
            measured = measure(options, prompts)
            rows += measured
            for row in measured:
                print(_line(row), flush=True)
            result = {
                "kind": KIND,
                "file": Path(options.model).name,
                "file_bytes": Path(options.model).stat().st_size,
                "prompts": len(prompts),
                "count": options.count,
                "environment": asdict(look_around(torch.device("cpu"))),
                "rows": rows,
            }
            if options.out:
                options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def _line(row: dict[str, Any]) -> str:
    return (
        f"{row['threads']} threads, batch {row['batch']}: {row['side']} {row['method']}:"
        f" {row['tokens'] / row['seconds']:.1f} tokens/s,"
        f" {row['tokens'] / row['processor_seconds']:.1f} per CPU second,"
        f" {row['peak_bytes'] / _MEGABYTE:.0f} MB, start-up {row['startup']['seconds']:.1f} s,"
        f" {row['equal_answers']} equal answers"
    )


def main() -> None:
    """Parse the command line; compare, or answer as one side."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("python", help="Python of the environment with xllamacpp")
    parser.add_argument("--model", default="smollm2", help="GGUF file; default: smollm2")
    parser.add_argument("--draft", help="GGUF file of a draft model, for llama.cpp's draft-simple")
    parser.add_argument("--prompts", nargs="*", default=[], help="JSONL files")
    parser.add_argument("--limit", type=int, default=0, help="prompts of each file; 0: all")
    parser.add_argument("--every", type=int, default=1, help="use every n-th prompt")
    parser.add_argument("--count", type=int, default=64, help="maximum tokens of an answer")
    parser.add_argument("--threads", dest="all_threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--batch", dest="batches", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--llama-methods", nargs="+", default=["none", "ngram-simple", "ngram-mod"])
    parser.add_argument("--drafters", nargs="+", default=["none", "auto"])
    parser.add_argument("--out", type=Path, help="JSON file of the results")
    parser.add_argument("--side", choices=[LLAMA, OURS], help=argparse.SUPPRESS)
    parser.add_argument("--method", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        options.threads, options.batch = options.all_threads[0], options.batches[0]
        (serve_llama if options.side == LLAMA else serve_ours)(options)
        return
    if options.draft:
        options.llama_methods.append("draft-simple")
    compare(options)


if __name__ == "__main__":
    main()
