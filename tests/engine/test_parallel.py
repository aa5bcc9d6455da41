"""Test lookahead parallelism: equal answers, less work per process, and clear errors."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM

from paceline import LLM, Completion, Drafter, DraftTree, SamplingParams
from paceline.core.request import Request
from paceline.core.tree import node_depths
from paceline.drafters import create
from paceline.engine.parallel.model import weight_sums
from paceline.engine.parallel.ranks import Ranks, check_columns
from paceline.engine.parallel.split import share
from paceline.errors import ConfigError, DrafterError
from tests.support.drafters import ScriptedTree
from tests.support.processes import Group
from tests.support.shared import Pair

TARGET = Path(__file__).parents[1] / "data" / "tiny_target"
WINDOW = "lookahead:window=15,ngram=5,guesses=15,budget=false"
LONG = [(7 * place) % 250 + 3 for place in range(150)]


def load() -> Any:
    return AutoModelForCausalLM.from_pretrained(TARGET, dtype=torch.float32).eval()


# Splitting trees.


@st.composite
def parent_lists(draw: Callable[..., Any]) -> tuple[int, ...]:
    """Generate parents of up to 40 nodes, from bushes to chains."""
    reach = draw(st.integers(1, 40))
    count = draw(st.integers(0, 40))
    return tuple(draw(st.integers(max(-1, node - 1 - reach), node - 1)) for node in range(count))


@given(parent_lists(), st.integers(1, 8))
def test_tree_is_split_evenly(parents: tuple[int, ...], ranks: int) -> None:
    shares = [share(parents, ranks, rank) for rank in range(ranks)]
    owned = [node for one in shares for node in one.nodes[one.owned].tolist()]
    assert sorted(owned) == list(range(len(parents)))
    depths = node_depths(parents)
    for one in shares:
        nodes = one.nodes.tolist()
        assert [nodes[parent] if parent >= 0 else -1 for parent in one.parents] == [
            parents[node] for node in nodes
        ]
        assert node_depths(one.parents).tolist() == depths[one.nodes].tolist()
        needed = set(one.nodes[one.owned].tolist())
        for node in reversed(range(len(parents))):
            if node in needed and parents[node] >= 0:
                needed.add(parents[node])
        assert nodes == sorted(needed)
    largest = max(len(one.nodes) for one in shares)
    assert largest <= -(-len(parents) // ranks) + max(depths.tolist(), default=1) - 1


@given(parent_lists(), st.integers(1, 4), st.randoms())
def test_share_keeps_its_part_of_a_path(parents: tuple[int, ...], ranks: int, choice: Any) -> None:
    path = [choice.randrange(len(parents))] if parents else []
    while path and parents[path[0]] >= 0:
        path.insert(0, parents[path[0]])
    for rank in range(ranks):
        one = share(parents, ranks, rank)
        kept = one.nodes[one.path_indices(path)].tolist() if path else []
        assert kept == path[: len(kept)]
        assert not set(path[len(kept) :]) & set(one.nodes.tolist())


def window(columns: int, levels: int) -> tuple[int, ...]:
    """Return the parents of a lookahead window's tree.

    It is a chain from the root, with a branch below the root and each of its nodes.
    """
    parents = list(range(-1, columns - 2))
    for column in range(-1, columns - 1):
        parents += [column, *range(len(parents), len(parents) + levels - 2)]
    return tuple(parents)


@pytest.mark.parametrize(("ranks", "share_of_all"), [(2, 0.6), (4, 0.4)])
def test_each_rank_feeds_part_of_a_window(ranks: int, share_of_all: float) -> None:
    parents = window(15, 4)
    assert len(parents) == 59
    assert max(
        len(share(parents, ranks, rank).nodes) for rank in range(ranks)
    ) <= share_of_all * len(parents)


# Answers.


class ScriptedColumns(ScriptedTree):
    columns = 8


@dataclass(frozen=True)
class Case:
    """Prompts and options of one call of an engine."""

    prompts: list[list[int]]
    params: SamplingParams | list[SamplingParams]
    max_batch: int = 8
    chunk: int = 512
    ends: tuple[int, ...] = ()

    def run(self, model: Any, drafter: str | Drafter, parallel: bool) -> list[Completion]:
        llm = LLM(model, drafter, max_batch=self.max_batch, lookahead_parallel=parallel)
        llm.model.prefill_chunk = self.chunk
        llm.eos_token_ids = list(self.ends)
        outs = llm.generate(self.prompts, self.params)
        assert llm.model.open_sequences == 0
        return outs


def cases(pair: Pair) -> list[Case]:
    prompts, ends = pair.prompts, tuple(answer[20] for answer in pair.answers[:3])
    mixed = [
        SamplingParams(40, temperature=value, seed=4, top_p=0.9)
        for value in (0.0, 0.7, 1.0, 0.7, 0.0)
    ]
    return [
        Case(prompts[:1], SamplingParams(60)),
        Case(prompts[1:4], SamplingParams(60)),
        Case(prompts[:1], SamplingParams(60, temperature=0.7, seed=5)),
        Case(prompts[1:4], SamplingParams(60, temperature=0.7, seed=6)),
        Case([LONG, prompts[1], LONG[:70]], SamplingParams(30), chunk=32),
        Case(prompts[:3], SamplingParams(60), ends=ends),
        Case(prompts[:5], mixed, max_batch=2),
        Case(prompts[:2], SamplingParams(40, repetition_penalty=1.3)),
    ]


def answer_in_parallel(
    folder: Path, cases_to_run: list[Case], expected: list[list[list[int]]], joined: bool
) -> None:
    if joined:
        dist.init_process_group("gloo")
    model, found = load(), []
    for case, answers in zip(cases_to_run, expected, strict=True):
        known = {
            tuple(prompt): answer for prompt, answer in zip(case.prompts, answers, strict=True)
        }
        assert [
            out.token_ids for out in case.run(model, ScriptedColumns(known, 256), True)
        ] == answers
        outs = case.run(model, WINDOW, True)
        assert [out.token_ids for out in outs] == answers
        assert [out.stats.target_forwards for out in outs] == [
            len(out.stats.query_tokens) for out in outs
        ]
        found.append(sum(sum(out.stats.query_tokens) for out in outs))
    (folder / f"{dist.get_rank()}.json").write_text(json.dumps(found))
    if joined:
        dist.destroy_process_group()


@pytest.mark.parametrize(
    ("ranks", "most"), [(2, 0.65), pytest.param(4, 0.45, marks=pytest.mark.slow)]
)
def test_answers_equal_one_process(pair: Pair, tmp_path: Path, ranks: int, most: float) -> None:
    """Check sampling, batches, long prompts and several end tokens, and the work per rank."""
    cases_to_run = cases(pair)[: 16 // ranks]
    plain = [
        [out.token_ids for out in case.run(pair.target, "none", False)] for case in cases_to_run
    ]
    alone = sum(
        sum(out.stats.query_tokens)
        for case in cases_to_run[:2]
        for out in case.run(pair.target, WINDOW, False)
    )
    group = Group(ranks, tmp_path, answer_in_parallel, tmp_path, cases_to_run, plain, ranks == 4)
    assert group.wait() == [0] * ranks, group.errors()
    fed = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(ranks)]
    assert max(sum(one[:2]) for one in fed) <= most * alone


# Mistakes that must be noticed.


class RankDependent(Drafter):
    """Drafter whose drafts depend on the rank."""

    name, columns = "unsteady", 4

    def propose(self, requests: Sequence[Request], max_nodes: list[int]) -> list[DraftTree]:
        return [DraftTree.chain([5] * (1 + dist.get_rank())) for _ in requests]


class SampledDrafts(Drafter):
    name, columns = "drawn", 4

    def propose(self, requests: Sequence[Request], max_nodes: list[int]) -> list[DraftTree]:
        return [DraftTree([5], [-1], [torch.full((256,), 1 / 256)]) for _ in requests]


def make_mistakes(prompt: list[int]) -> None:
    model, rank = load(), Ranks.join().rank
    weight = model.model.layers[1].mlp.up_proj.weight
    before = weight[3, 4].item()
    with torch.no_grad():
        weight[3, 4] += rank // 2 * 1e-6
    with pytest.raises(
        ConfigError, match="model weights of rank 2 differ from those of rank 0; all 3 ranks"
    ):
        LLM(model, WINDOW, lookahead_parallel=True)
    with torch.no_grad():
        weight[3, 4] = before
    with pytest.raises(ConfigError, match="drafters of ranks 1 and 2 differ"):
        LLM(model, f"lookahead:window={4 + min(rank, 1)}", lookahead_parallel=True)
    llm = LLM(model, WINDOW, lookahead_parallel=True)
    with pytest.raises(ConfigError, match="prompts or sampling parameters of ranks 1 and 2 differ"):
        llm.generate([prompt[rank:]])
    with pytest.raises(ConfigError, match="prompts or sampling parameters of rank 1 differ"):
        llm.generate([prompt], SamplingParams(temperature=1.0, seed=rank % 2))
    llm.change_drafter(RankDependent())
    with pytest.raises(DrafterError, match="drafted different trees"):
        llm.generate([prompt])
    llm.change_drafter(SampledDrafts())
    with pytest.raises(DrafterError, match="only deterministic drafts"):
        llm.generate([prompt])
    assert llm.model.open_sequences == 0


def test_differing_processes_are_reported(pair: Pair, tmp_path: Path) -> None:
    group = Group(3, tmp_path, make_mistakes, pair.prompts[0])
    assert group.wait() == [0] * 3, group.errors()


def test_weight_sums_notice_any_change() -> None:
    model = load()
    before = weight_sums(model)
    assert before == weight_sums(load())
    weight = model.model.layers[0].self_attn.q_proj.weight.data
    weight[:2] = weight[:2].flip(0)  # two rows exchanged
    assert [old == new for old, new in zip(before, weight_sums(model), strict=True)].count(
        False
    ) == 1
    assert weight_sums(model.bfloat16()) != weight_sums(model.half())


def test_drafters_without_columns_are_refused() -> None:
    with pytest.raises(
        ConfigError,
        match="'prompt_lookup', whose trees cannot be split among processes",
    ):
        check_columns(create("prompt_lookup"), 2)
    check_columns(create(WINDOW), 15)
    with pytest.raises(
        ConfigError,
        match=r"got 20 ranks .* expected 1 to 15 ranks\. Reduce --nproc-per-node, or raise window",
    ):
        check_columns(create(WINDOW), 20)
