"""Test Lookahead Decoding against runs of the public code, and its window and pool by hand."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from paceline import LLM, DraftTree, Outcome, SamplingParams
from paceline.core.request import Request
from paceline.core.tree import node_depths, tree_shape
from paceline.core.tree_builder import TreeBuilder
from paceline.drafters import create
from paceline.drafters.lookahead.drafter import WINDOW_LEFT_OUT, Lookahead
from paceline.drafters.lookahead.window import LookaheadWindow
from paceline.drafters.shared.ngram_pool import NgramPool
from paceline.errors import ConfigError
from tests.support.models import make
from tests.support.shared import COUNT, Pair, reference

GOLDEN = json.loads((Path(__file__).parents[1] / "data" / "lookahead_golden.json").read_text())
RUNS = {name: tuple(int(part[1:]) for part in name.split("_")[:3]) for name in GOLDEN["runs"]}


def golden_run(pair: Pair, name: str, *options: str) -> list[Any]:
    """Decode the golden prompts one at a time, as the public code did."""
    ngram, window, guesses = RUNS[name]
    pool = f"prompt_pool={str(name.endswith('_pp')).lower()}"
    llm = pair.engine(
        ":".join(
            [
                "lookahead",
                ",".join(
                    [f"window={window}", f"ngram={ngram}", f"guesses={guesses}", pool, *options]
                ),
            ]
        )
    )
    params = SamplingParams(max_new_tokens=96, ignore_eos=True)
    return [llm.generate([prompt], params)[0] for prompt in pair.prompts]


@pytest.mark.parametrize("name", [name for name in RUNS if not name.endswith("_pp")])
def test_reference_mode_equals_the_public_code(pair: Pair, name: str) -> None:
    outs = golden_run(pair, name, "reference_mode=true")
    assert [out.token_ids for out in outs] == GOLDEN["answers"]
    assert [out.stats.query_tokens for out in outs] == GOLDEN["runs"][name]["fed"]
    assert [out.stats.target_forwards for out in outs] == GOLDEN["runs"][name]["target_forwards"]


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if name.endswith("_pp") else ()) for name in RUNS],
)
def test_defaults_need_fewer_forwards(pair: Pair, name: str) -> None:
    outs = golden_run(pair, name)
    assert [out.token_ids for out in outs] == GOLDEN["answers"]
    assert sum(out.stats.target_forwards for out in outs) < sum(
        GOLDEN["runs"][name]["target_forwards"]
    )


def test_window_mask_equals_the_papers() -> None:
    """Compare W=3, N=3 and two guesses with the figure in the paper.

    Rows and columns are c a1 a2 b0 b1 b2 g1 g2 h1 h2.
    """
    builder = TreeBuilder(99)
    newest = LookaheadWindow([[1, 2], [3, 4, 5]], 3).add_to_tree(builder.add_probe)
    for guess in ([6, 7], [8, 9]):
        builder.add_path(guess)
    tree = builder.build()
    assert tree.token_ids == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert newest == [2, 3, 4]
    drawn = [
        "x........",
        "xx.......",
        "..x......",
        "x..x.....",
        "xx..x....",
        ".....x...",
        ".....xx..",
        ".......x.",
        ".......xx",
    ]
    assert [
        "".join("x" if seen else "." for seen in row)
        for row in tree_shape(tuple(tree.parents))[1].tolist()
    ] == drawn
    assert node_depths(tree.parents).tolist() == [1, 2, 1, 2, 3, 1, 2, 1, 2]


def test_a_window_slides() -> None:
    window = LookaheadWindow([[1, 2], [3, 4, 5]], 3)
    assert window.full
    assert len(window) == 5
    assert list(window.ngrams((9, 0), [6, 7, 8])) == [
        ((9, 0), (3, 6)),
        ((0, 1), (4, 7)),
        ((1, 2), (5, 8)),
    ]
    assert next(window.ngrams((0,), [6, 7, 8])) == ((0,), (3, 6))
    window.slide([6, 7, 8])
    assert window.levels == [[4, 5], [6, 7, 8]]


def test_bigrams_need_one_level_only() -> None:
    window = LookaheadWindow([[1, 2]], 2)
    assert window.full
    assert window.add_to_tree(TreeBuilder(9).add_probe) == [-1, 0, 1]
    assert list(window.ngrams((0,), [5, 6, 7])) == [((0,), (5,)), ((0, 1), (6,)), ((1, 2), (7,))]
    window.slide([5, 6, 7])
    assert window.levels == [[6, 7]]


@pytest.mark.parametrize(("width", "ngram"), [(1, 3), (2, 4), (5, 5), (7, 3)])
def test_the_warm_up_fills_the_window(width: int, ngram: int) -> None:
    window = LookaheadWindow.from_tokens([4, 5, 6], width, ngram, random.Random(1))
    for step in range(ngram - 2):
        assert not window.full
        assert 1 + len(window) == (
            (step + 1) * (width + ngram - 2 - step) if step else width + ngram - 2
        )
        window.slide([9] * len(window.add_to_tree(TreeBuilder(99).add_probe)))
    assert window.full
    assert len(window) == (ngram - 1) * width - 1
    phrases = LookaheadWindow.from_phrases([4, 5, 6], width, ngram, random.Random(1))
    assert [len(level) for level in phrases.levels] == [len(level) for level in window.levels]


def test_the_pool_keeps_the_newest() -> None:
    pool = NgramPool(2)
    for ngram in [(1,), (2,), (1,), (3,)]:
        pool.insert((0,), ngram)
    assert list(pool.newest_first((0,))) == [(3,), (1,)]
    pool.discard((0,), (3,))
    pool.discard((5,), (3,))
    assert list(pool.newest_first((0,))) == [(1,)]
    assert len(pool) == 1
    assert list(pool.newest_first((5,))) == []


def verify_guesses(
    drafter: Lookahead,
    request: Request,
    tree: DraftTree,
    accepted: list[int],
    bonus: int,
    argmax: list[int],
) -> None:
    """Let the target verify `tree` with the given outcome."""
    run = [tree.token_ids[node] for node in accepted] + [bonus]
    request.append(run)
    drafter.observe([Outcome(request, tree, accepted, run, argmax)])


def started(spec: str, prompt: list[int]) -> tuple[Lookahead, Request]:
    drafter = create(spec)
    assert isinstance(drafter, Lookahead)
    request = Request(prompt, SamplingParams(max_new_tokens=50))
    drafter.start(request)
    return drafter, request


def test_longer_keys_come_first_and_misses_are_dropped() -> None:
    """Check keys (1, 2) and (2,), where only the shorter one continues with 5."""
    drafter, request = started(
        "lookahead:window=1,ngram=2,guesses=2,ngrams_per_key=4", [1, 2, 3, 4, 2, 5, 1, 2]
    )
    (tree,) = drafter.propose([request], [9])
    assert tree.token_ids[0] == 3
    # the guess was wrong, so the pool drops it
    verify_guesses(drafter, request, tree, [], 5, [5] * (1 + len(tree)))
    request.append([1])
    request.append([2])
    (tree,) = drafter.propose([request], [9])
    assert tree.token_ids == [5, 1]
    assert tree.parents == [-1, 0]


def test_shared_prefixes_merge_and_limits_cut_guesses() -> None:
    prompt = [7, 1, 2, 3, 7, 1, 2, 4, 7]
    drafter, request = started("lookahead:window=1,ngram=4,guesses=4", prompt)
    (tree,) = drafter.propose([request], [99])
    paths = {
        tuple(
            tree.token_ids[node]
            for node in range(len(tree))
            if tree_shape(tuple(tree.parents))[1][leaf, node]
        )
        for leaf in range(len(tree))
    }
    assert {(1,), (1, 2), (1, 2, 3), (1, 2, 4)} <= paths
    assert tree.token_ids.count(1) <= 2  # once among the guesses, and perhaps in the window
    request.max_length = len(request) + 3
    (tree,) = drafter.propose([request], [99])
    guessed = [node for node in range(len(tree)) if node >= 2]
    assert all(depth <= 2 for depth in node_depths(tree.parents)[guessed])
    request.max_length = len(request) + 1
    assert drafter.propose([request], [99]) == [DraftTree([], [])]


def test_window_above_the_node_limit_is_left_out(pair: Pair) -> None:
    llm = pair.engine("lookahead:window=15,ngram=5,guesses=4", max_nodes=20)
    params = SamplingParams(max_new_tokens=COUNT)
    outs = llm.generate(pair.prompts, params)
    assert [out.token_ids for out in outs] == pair.answers
    assert all(out.stats.notes[WINDOW_LEFT_OUT] >= 1 for out in outs)
    assert max(fed for out in outs for fed in out.stats.query_tokens[1:]) <= 21
    # guesses from prompt and answer still work
    assert any(out.stats.accepted_tokens for out in outs)
    drafter, request = started(
        "lookahead:window=3,ngram=3,guesses=4,prompt_pool=false", [1, 2, 3, 4, 5, 6]
    )
    window = [list(level) for level in drafter._states[request.id].window.levels]  # type: ignore[union-attr]
    (tree,) = drafter.propose([request], [4])
    verify_guesses(drafter, request, tree, [], 9, [9] * (1 + len(tree)))
    assert drafter._states[request.id].window.levels == window  # type: ignore[union-attr]


def test_reference_mode_keeps_to_max_nodes() -> None:
    drafter, request = started(
        "lookahead:window=2,ngram=3,guesses=3,reference_mode=true", [1, 2, 3, 1, 4, 5, 1, 6, 7, 1]
    )
    for limit in range(12):
        (tree,) = drafter.propose([request], [limit])
        assert len(tree) <= limit
        assert tree.num_candidates <= tree.probes


@pytest.mark.parametrize("name", ["bloom", "mpt"])
def test_chain_models_verify_the_best_ngram(name: str) -> None:
    model = make(name)
    prompt = [5, 6, 7, 8, 9] * 4
    out = LLM(model, drafter="lookahead:window=4,ngram=4,guesses=4").generate(
        [prompt], SamplingParams(max_new_tokens=24)
    )[0]
    assert out.token_ids == reference(model, prompt, 24)
    assert max(out.stats.query_tokens[1:]) > 1


@pytest.mark.parametrize("name", ["qwen2_mixed", "gemma2"])
def test_models_with_sliding_windows(name: str) -> None:
    model = make(name)
    prompts = [[5, 6, 7, 8, 9] * 4, [11, 12, 13], list(range(20, 50))]
    outs = LLM(model, drafter="lookahead:window=5,ngram=4,guesses=5").generate(
        prompts, SamplingParams(max_new_tokens=24)
    )
    assert [out.token_ids for out in outs] == [reference(model, prompt, 24) for prompt in prompts]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("window=0", "lookahead: window: got 0; expected at least 1."),
        ("ngram=1", "lookahead: ngram: got 1; expected at least 2."),
        ("guesses=-1", "lookahead: guesses: got -1; expected at least 0."),
        ("ngrams_per_key=0", "lookahead: ngrams_per_key: got 0; expected at least 1."),
        (
            "ngram=2,reference_mode=true",
            "lookahead: got ngram=2 with reference_mode=true; expected 3 or more, as the public"
            " code needs. Raise ngram.",
        ),
    ],
)
def test_options_out_of_range_are_refused(options: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        create(f"lookahead:{options}")
    assert str(caught.value) == says


@pytest.mark.parametrize("compat", [False, True])
def test_answers_under_every_small_setting(pair: Pair, compat: bool) -> None:
    for ngram in (2, 3, 6):
        for window in (1, 4):
            for guesses in (0, 2):
                if compat and (ngram == 2 or guesses == 0):
                    continue
                spec = f"lookahead:window={window},ngram={ngram},guesses={guesses}"
                spec += f",reference_mode={compat}"
                outs = pair.engine(spec).generate(
                    pair.prompts[:4], SamplingParams(max_new_tokens=COUNT)
                )
                assert [out.token_ids for out in outs] == pair.answers[:4], spec
