"""Set the sizes of all measurements, for a GPU and for a quick run on a CPU."""

from __future__ import annotations

from dataclasses import dataclass

# Packages that a GPU image with torch, transformers and numba usually lacks.
CARRIED = ("cattrs", "cyclopts", "docstring_parser", "rich_rst", "transformers==5.24.0")
CARRIED_FOR_GGUF = ("gguf", "accelerate")
CARRIED_FOR_TESTS = ("pytest", "hypothesis")


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of the measurements.

    Attributes:
        repeats: Number of timed calls; the median counts.
        key_lengths: Numbers of keys in the attention part.
        new_lengths: Number of key lengths that are each seen for the first time.
        columns: Numbers of columns per request in the attention part.
        copy_bytes: Size of the copy that measures bandwidth.
        exact_prompts: Number of prompts in the exact part.
        exact_tokens: Number of new tokens per answer in the exact part.
        exact_batches: Values of `max_batch` in the exact part.
        dtypes: Data types in the exact part.
        drafters: Drafters in the exact part; empty for all.
        layers: Number of layers of the random model in the forward part.
        contexts: Numbers of cached tokens in the forward part.
        rows: Numbers of rows in the forward part.
        graph_rows: Numbers of rows per request in the graph part.
        prompt: Number of tokens of a prompt in the forward part.
        prefill_chunks: Maximum numbers of its tokens per forward pass.
        scale: Width and layers of the enlarged target.
        batches: Values of `max_batch` in the end-to-end part.
        prompts: Number of prompts for each of these batches.
        tokens: Number of new tokens per answer in the end-to-end part.
        methods: Drafters in the end-to-end part.
        invariant_methods: Drafters that are also measured with batch invariance.
        profiled: Drafters in the profile part.
        profiled_tokens: Number of new tokens per answer in the profile part.
        profiled_steps: Number of profiled steps.
        test_seconds: Time limit of the tests.
    """

    repeats: int = 20
    key_lengths: tuple[int, ...] = (2048, 8192)
    new_lengths: int = 16
    columns: tuple[int, ...] = (1, 8, 16, 32, 64)
    copy_bytes: int = 1 << 30
    exact_prompts: int = 8
    exact_tokens: int = 64
    exact_batches: tuple[int, ...] = (1, 8)
    dtypes: tuple[str, ...] = ("float32", "bfloat16")
    drafters: tuple[str, ...] = ()
    layers: int = 32
    contexts: tuple[int, ...] = (512, 4096)
    rows: tuple[int, ...] = (1, 16, 64, 2, 4, 8, 32, 128)
    graph_rows: tuple[int, ...] = (1, 16, 64, 4)
    prompt: int = 4096
    prefill_chunks: tuple[int, ...] = (512, 2048)
    scale: str = "4096x32"
    batches: tuple[int, ...] = (1, 8, 32)
    prompts: tuple[int, ...] = (6, 16, 32)
    tokens: int = 128
    methods: tuple[str, ...] = (
        "none",
        "auto",
        "sssd",
        "lookahead",
        "draft_model",
        "prompt_lookup",
        "token_recycling",
    )
    invariant_methods: tuple[str, ...] = ("none", "auto")
    profiled: tuple[str, ...] = ("none", "auto", "draft_model")
    profiled_tokens: int = 96
    profiled_steps: int = 10
    test_seconds: float = 240.0


FULL = Sizes()
SMOKE = Sizes(
    repeats=2,
    key_lengths=(64,),
    new_lengths=2,
    columns=(1, 4),
    copy_bytes=1 << 20,
    exact_prompts=2,
    exact_tokens=8,
    exact_batches=(1, 2),
    dtypes=("float32",),
    drafters=("prompt_lookup", "auto", "draft_model"),
    layers=2,
    contexts=(32,),
    rows=(1, 4),
    graph_rows=(1, 3),
    prompt=64,
    prefill_chunks=(32,),
    scale="512x6",
    batches=(1, 2),
    prompts=(1, 2),
    tokens=8,
    methods=("none", "auto", "draft_model"),
    invariant_methods=("none", "lookahead"),
    profiled=("none",),
    profiled_tokens=12,
    profiled_steps=3,
    test_seconds=60.0,
)
