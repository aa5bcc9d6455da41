"""Test PIA's tries by hand and against plain counting, its queries and its memory limits."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline import DraftTree, Outcome, SamplingParams
from paceline.core.request import Request
from paceline.core.tree import EMPTY_TREE
from paceline.drafters import create
from paceline.drafters.pia.drafter import Pia, Selection
from paceline.drafters.pia.options import PiaOptions
from paceline.drafters.pia.tries import Children, PhraseTries, TrieLimits
from paceline.errors import ConfigError
from tests.support.enumeration import path_to
from tests.support.shared import Pair

Paths = dict[tuple[int, ...], tuple[dict[int, int], float]]


def phrase_counts(tries: PhraseTries) -> Paths:
    """Return every phrase of the tries with its counts."""
    found: Paths = {}

    def walk(path: tuple[int, ...], children: Children) -> None:
        for token, node in children.items():
            found[*path, token] = (node.inputs, node.output)
            walk((*path, token), node.children)

    for first, tree in tries._trees.items():
        walk((first,), tree.children)
    return found


def recounted(tries: PhraseTries) -> dict[int, tuple[int, int]]:
    """Recount what `counts` should return."""
    nodes = Counter(path[0] for path in phrase_counts(tries))
    outputs = Counter(path[0] for path, (_, output) in phrase_counts(tries).items() if output)
    return {first: (count, outputs[first]) for first, count in nodes.items()}


def answering_request(drafter: Pia, prompt: list[int], output: list[int], new: int = 99) -> Request:
    """Return a request that has answered `output`, one token per step."""
    seq = Request(prompt, SamplingParams(max_new_tokens=new))
    drafter.start(seq)
    for token in output:
        seq.append([token])
        drafter.observe([Outcome(seq, EMPTY_TREE, [], [token], [token])])
    return seq


def drafted(drafter: Pia, seq: Request, limit: int = 99) -> DraftTree:
    (tree,) = drafter.propose([seq], [limit])
    return tree


def test_prompt_phrases_are_counted() -> None:
    tries = PhraseTries(2)
    tries.add_prompt([1, 2, 3, 1, 2, 4], 7)
    counts = {
        (1, 2): 2,
        (1, 2, 3): 1,
        (1, 2, 4): 1,
        (2, 3): 1,
        (2, 3, 1): 1,
        (2, 4): 1,
        (3, 1): 1,
        (3, 1, 2): 1,
    }
    assert phrase_counts(tries) == {path: ({7: count}, 0.0) for path, count in counts.items()}
    tries.add_output([9, 1, 2, 3], 1, 3)
    assert phrase_counts(tries)[1, 2, 3] == ({7: 1}, 1.0)
    assert tries.counts() == recounted(tries) == {1: (3, 2), 2: (3, 1), 3: (2, 0)}


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.lists(st.integers(0, 3), min_size=1, max_size=9)),
        max_size=14,
    )
)
def test_tries_equal_plain_counts(steps: list[tuple[int, list[int]]]) -> None:
    """Check counts while requests start, emit tokens and end in any order.

    Each generated step starts a request, appends to it or ends it.
    """
    drafter = Pia(PiaOptions(max_draft_tokens=2, query_ngram=1))
    seqs: dict[int, Request] = {}
    done: list[list[int]] = []
    for number, tokens in steps:
        if number not in seqs:
            seqs[number] = answering_request(drafter, tokens, [])
        elif len(tokens) == 1:
            done.append(seqs[number].output_ids)
            drafter.stop(seqs.pop(number))
        else:
            seqs[number].append(tokens)
            drafter.observe([Outcome(seqs[number], EMPTY_TREE, [], tokens, tokens)])
    counts: Paths = {}
    for seq in seqs.values():
        prompt = seq.token_ids[: seq.prompt_length]
        for path, count in phrases(prompt, 1).items():
            counts.setdefault(path, ({}, 0.0))[0][seq.id] = count
    outputs = sum((phrases(tokens, 1) for tokens in done), Counter[tuple[int, ...]]())
    outputs += sum(
        (phrases(seq.output_ids, 3) for seq in seqs.values()), Counter[tuple[int, ...]]()
    )
    for path, count in outputs.items():
        counts[path] = (counts.get(path, ({}, 0.0))[0], float(count))
    assert phrase_counts(drafter._tries) == counts
    assert drafter._tries.counts() == recounted(drafter._tries)


def phrases(tokens: list[int], shortest: int) -> Counter[tuple[int, ...]]:
    """Count all prefixes of all phrases: a first token and up to 3 more.

    Phrases with fewer than `shortest` more tokens are left out.
    """
    whole = [tuple(tokens[start : start + 4]) for start in range(len(tokens) - shortest)]
    return Counter(phrase[:end] for phrase in whole for end in range(2, len(phrase) + 1))


def test_drafts_use_the_own_prompt_and_all_outputs() -> None:
    drafter = Pia(PiaOptions(max_draft_tokens=2))
    first, second = (
        answering_request(drafter, [1, 2, 3], [7, 1, 2, 4, 5]),
        answering_request(drafter, [1, 2, 6, 1, 2], []),
    )
    tree = drafted(drafter, second)
    assert (tree.token_ids, tree.parents) == ([6, 1, 4, 5], [-1, 0, -1, 2])
    assert tree.confidence == pytest.approx([0.9999, 1.0, 0.0001, 1.0])
    drafter.stop(second)
    third = answering_request(drafter, [3, 1, 2], [])
    assert drafted(drafter, third).token_ids == [4, 5]
    drafter.stop(first)
    drafter.stop(third)
    assert all(not inputs and output for inputs, output in phrase_counts(drafter._tries).values())


def test_output_phrases_are_added_when_complete() -> None:
    drafter = Pia(PiaOptions(max_draft_tokens=2))
    seq = answering_request(drafter, [9], [1, 2, 3])
    assert phrase_counts(drafter._tries) == {}
    seq.append([4])
    drafter.observe([Outcome(seq, EMPTY_TREE, [], [4], [4])])
    assert set(phrase_counts(drafter._tries)) == {(1, 2), (1, 2, 3), (1, 2, 3, 4)}
    drafter.stop(seq)
    drafter.stop(seq)
    assert set(phrase_counts(drafter._tries)) == {
        (1, 2),
        (1, 2, 3),
        (1, 2, 3, 4),
        (2, 3),
        (2, 3, 4),
        (3, 4),
    }
    assert {output for _, output in phrase_counts(drafter._tries).values()} == {1.0}


def test_short_result_falls_back_to_shorter_queries() -> None:
    drafter = Pia(PiaOptions(max_draft_tokens=4))
    assert drafted(
        drafter, answering_request(drafter, [1, 2, 3, 4, 5, 6, 2, 7, 1, 2], [])
    ).token_ids == [
        3,
        4,
        5,
        6,
    ]
    few = Request([1, 2, 3, 9, 2, 7, 8, 1, 2], SamplingParams())
    drafter = Pia(PiaOptions(max_draft_tokens=6, query_ngram=2))
    drafter.start(few)
    assert drafted(drafter, few).token_ids == [3, 9, 2, 7, 8, 1]
    longer = Pia(PiaOptions(max_draft_tokens=9, query_ngram=2))
    longer.start(few)
    tree = drafted(longer, few)
    assert {
        token for token, parent in zip(tree.token_ids, tree.parents, strict=True) if parent < 0
    } == {3, 7}


def test_shorter_query_without_matches_keeps_the_result() -> None:
    drafter = Pia(PiaOptions(max_draft_tokens=9))
    seq = answering_request(drafter, [5, 1, 2, 5, 1], [])
    other = answering_request(drafter, [6, 7], [])
    assert drafted(drafter, seq).token_ids == [2, 5, 1]
    assert drafted(drafter, other) is EMPTY_TREE


def test_draft_length_limits() -> None:
    drafter = Pia(PiaOptions(max_draft_tokens=3))
    prompt = [1, 2, 3, 4, 5, 6, 1]
    assert [
        len(drafted(drafter, answering_request(drafter, prompt, [], new)))
        for new in (1, 2, 3, 4, 9)
    ] == [0, 1, 2, 3, 3]
    seq = answering_request(drafter, prompt, [])
    assert [drafted(drafter, seq, limit).token_ids for limit in range(5)] == [
        [],
        [2],
        [2, 3],
        [2, 3, 4],
        [2, 3, 4],
    ]


def test_selection_keeps_frequent_outputs_and_best_scores() -> None:
    """Check selections of 1, 2, 4 and 6 nodes, among which frequent outputs come first.

    Further nodes are ranked by score, where a prompt weighs 9,999 times as much.
    """
    tries = PhraseTries(1)
    for token, inputs, outputs in [
        (10, 3, 0),
        (11, 2, 1),
        (12, 1, 0),
        (13, 0, 9),
        (14, 0, 8),
        (15, 1, 1),
    ]:
        for _ in range(inputs):
            tries.add_prompt([0, token], 5)
        for _ in range(outputs):
            tries.add_output([0, token], 0, 1)
    children = tries.following([0], 5)
    assert Selection(5, 4).tree_below(children, 1).token_ids == [10, 11, 13, 14]
    assert Selection(5, 2).tree_below(children, 1).token_ids == [10, 13]
    assert Selection(5, 1).tree_below(children, 1).token_ids == [10]
    assert Selection(5, 6).tree_below(children, 1).token_ids == [10, 11, 15, 12, 13, 14]
    assert Selection(6, 6).tree_below(children, 1).token_ids == [13, 14, 11, 15]


@given(
    st.lists(st.integers(0, 2), max_size=60),
    st.lists(st.integers(0, 2), max_size=60),
    st.integers(1, 30),
    st.integers(1, 4),
)
def test_selection_is_full_and_keeps_the_best(
    prompt: list[int], output: list[int], limit: int, depth: int
) -> None:
    tries = PhraseTries(5)
    tries.add_prompt(prompt, 1)
    tries.add_output(output, 0, len(output) - 1)
    known = {
        path[1:]: counts
        for path, counts in phrase_counts(tries).items()
        if path[0] == 0 and len(path) <= depth + 1
    }
    scores = {
        path: 0.9999 * inputs.get(1, 0) + 0.0001 * outputs
        for path, (inputs, outputs) in known.items()
    }
    tree = Selection(1, limit).tree_below(tries.following([0], 1), depth)
    kept = {path_to(tree, node) for node in range(len(tree))}
    assert len(kept) == len(tree) == min(limit, len(known))
    assert kept <= set(known)
    assert not known or scores[path_to(tree, 0)] == max(scores.values())
    for path, confidence in zip(
        (path_to(tree, node) for node in range(len(tree))), tree.confidence or [], strict=True
    ):
        siblings = sum(score for other, score in scores.items() if other[:-1] == path[:-1])
        assert confidence == pytest.approx(scores[path] / siblings)


def test_squeeze_halves_outputs_and_drops_rare_ones() -> None:
    tries = PhraseTries(2, TrieLimits(nodes=100, outputs=3, touched=2))
    for text, times in (([1, 2, 3], 4), ([1, 2, 4], 1), ([1, 5], 1), ([2, 3], 0)):
        for _ in range(times):
            tries.add_output(text, 0, 1)
    tries.add_prompt([1, 5, 6], 8)
    tries.squeeze()
    assert tries.counts()[1] == (5, 4)  # one tree over its limit is not enough
    tries.add_output([2, 3], 0, 1)
    tries.squeeze()
    left = {
        (1, 2): ({}, 2.5),
        (1, 2, 3): ({}, 2.0),
        (1, 5): ({8: 1}, 0.0),
        (1, 5, 6): ({8: 1}, 0.0),
    }
    assert phrase_counts(tries) == left | {(2, 3): ({}, 1.0), (5, 6): ({8: 1}, 0.0)}
    assert tries.counts() == recounted(tries)
    tries.forget_prompt([1, 5, 6], 8)
    assert set(phrase_counts(tries)) == {(1, 2), (1, 2, 3), (2, 3)}


def test_memory_is_bounded() -> None:
    """Check the node limit where all phrases fall into few trees."""
    tries, rng = PhraseTries(4, TrieLimits(nodes=200, outputs=50)), random.Random(1)
    largest = 0
    for request in range(300):
        text = [rng.randrange(8) for _ in range(30)]
        tries.add_prompt(text, request)
        tries.add_output(text, 0, 29)
        tries.forget_prompt(text, request)
        tries.squeeze()
        largest = max(largest, *(nodes for nodes, _ in tries.counts().values()))
    assert 100 < largest <= 200
    assert tries.counts() == recounted(tries)


def test_an_engine_learns_from_its_answers(pair: Pair) -> None:
    """Check that repeated prompts need fewer forward passes and that no request's data stays."""
    llm = pair.engine("pia")
    params = SamplingParams(max_new_tokens=40)
    first, second = (llm.generate(pair.prompts, params) for _ in range(2))
    assert [out.token_ids for out in first] == [out.token_ids for out in second] == pair.answers
    assert sum(out.stats.target_forwards for out in second) < 0.5 * sum(
        out.stats.target_forwards for out in first
    )
    assert isinstance(llm.drafter, Pia)
    assert not any(inputs for inputs, _ in phrase_counts(llm.drafter._tries).values())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("max_nodes=0", "max_nodes: got 0; expected at least 1"),
        ("max_draft_tokens=0", "max_draft_tokens: got 0; expected at least 1"),
        ("query_ngram=0", "query_ngram: got 0; expected from 1 to 13"),
        ("max_draft_tokens=2,query_ngram=4", "query_ngram: got 4; expected from 1 to 3"),
    ],
)
def test_invalid_options_are_refused(options: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        create(f"pia:{options}")
