"""Test the `sssd` drafter: its index, trees, sources and calibration."""

from __future__ import annotations

import base64
import json
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline import LLM, DraftTree, SamplingParams, datastore
from paceline.core.node_rule import node_limit
from paceline.core.request import Request
from paceline.core.tree import node_depths
from paceline.core.vocabulary_check import check_vocabulary
from paceline.datastore.rows import Query
from paceline.datastore.search import suffix_at
from paceline.drafters import create
from paceline.drafters.sssd.calibration import WEIGHTS_FILE, load_weights
from paceline.drafters.sssd.drafter import Sssd
from paceline.drafters.sssd.features import FEATURES
from paceline.drafters.sssd.options import SssdOptions
from paceline.drafters.sssd.paper import branch_length
from paceline.drafters.sssd.pool import new_pool
from paceline.drafters.sssd.request_index import RequestIndex
from paceline.drafters.sssd.settings import HIDDEN, LONGEST
from paceline.drafters.sssd.store_matches import SuffixMatches, look_up, sample
from paceline.errors import ConfigError, DatastoreError
from paceline.replay import replay
from paceline.verification.tree_rules import check_trees
from tests.support.kernels import from_python
from tests.support.models import byte_tokenizer
from tests.support.shared import Pair
from tests.support.sssd_inputs import candidates, offered_tokens
from tests.support.stores import continuations, random_documents, store

_look_up = from_python(look_up)
_suffix_at = from_python(suffix_at)
_sample = from_python(sample)
_branch_length = from_python(branch_length)

VOCAB = 6
ALL_LINKS = 10**4
FUSIONS = ("calibrated", "paper")
PARTS = st.lists(st.lists(st.integers(0, 2), max_size=25), min_size=1, max_size=8)


def matches(text: Sequence[int]) -> dict[int, int]:
    """Map the position after each earlier occurrence of the newest tokens to its length."""
    found = {}
    for end in range(1, len(text)):
        size = 0
        while size < min(end, LONGEST) and text[end - 1 - size] == text[-1 - size]:
            size += 1
        if size:
            found[end] = size
    return found


@settings(deadline=None, max_examples=60)
@given(PARTS)
def test_the_index_finds_every_earlier_occurrence(parts: list[list[int]]) -> None:
    """Check occurrences of tokens just appended, with their exact lengths."""
    index, text = RequestIndex(), list[int]()
    for part in parts:
        index.append(part)
        text += part
        assert len(index) == len(text)
        if text:
            assert dict(index.find(max_links=ALL_LINKS)) == matches(text)


def test_the_index_grows() -> None:
    index, rng = RequestIndex(), random.Random(1)
    text = [rng.randrange(2**32) for _ in range(3000)] + [7, 8, 9, 10]
    for begin in range(0, len(text), 700):
        index.append(text[begin : begin + 700])
    index.append(text[1000:1010])
    assert max(index.find(), key=lambda one: one[1]) == (1010, 10)


def test_only_the_latest_links_are_followed() -> None:
    index = RequestIndex()
    index.append([1, 2] * 50)
    assert {place for place, _ in index.find(max_links=3)} == {
        98,
        96,
    }  # the first link leads to the newest token itself


def drafted(drafter: Sssd, text: Sequence[int], nodes: int, room: int = 40) -> DraftTree:
    """Return the tree after `text`."""
    request = Request(list(text), SamplingParams(max_new_tokens=room))
    drafter.start(request)
    (tree,) = drafter.propose([request], [nodes])
    check_trees(drafter, [request], [nodes], [tree], 2**32)
    drafter.stop(request)
    return tree


def paths(tree: DraftTree) -> list[list[int]]:
    """Return the tokens from the root to every node."""
    found: list[list[int]] = []
    for token, parent in zip(tree.token_ids, tree.parents, strict=True):
        found.append([*(found[parent] if parent >= 0 else []), token])
    return found


@pytest.mark.parametrize("fusion", FUSIONS)
def test_tree_paths_come_from_text_or_datastore(tmp_path: Path, fusion: str) -> None:
    """Check that every path continues some suffix and that confidences are in (0, 1]."""
    documents = random_documents()
    drafter = Sssd(SssdOptions(str(store(tmp_path / "store", documents)), fusion, max_nodes=40))
    rng = random.Random(4)
    nodes = 0
    for _ in range(60):
        text = [rng.randrange(VOCAB) for _ in range(rng.randint(1, 40))]
        budget, room = rng.choice([0, 1, 2, 7, 40]), rng.randint(1, 12)
        tree = drafted(drafter, text, budget, room)
        nodes += len(tree)
        assert len(tree) <= budget
        assert not len(tree) or node_depths(tree.parents).max() <= room - 1
        assert all(0 < one <= 1 for one in tree.confidence or ())
        for path in paths(tree):
            query = [text[-1], *path]  # the shortest match that could lead here
            repeated = any(
                [*text, *path][i : i + len(query)] == query for i in range(len(text) - 1)
            )
            again = any(query[-2:] == ([*text, *path])[i : i + 2] for i in range(len(text) - 1))
            assert (
                repeated
                or again
                or continuations(documents, query, 1)
                or continuations(documents, query[-2:], 1)
            )
    assert nodes > 200


def test_batch_shares_nodes_unless_max_nodes_is_set() -> None:
    free, fixed = Sssd(SssdOptions(budget=False)), Sssd(SssdOptions(max_nodes=24))
    assert [node_limit(free.node_rule, batch, 256) for batch in (1, 2, 3, 4, 8, 16, 64)] == [
        7,
        7,
        7,
        6,
        3,
        1,
        1,
    ]
    assert [node_limit(fixed.node_rule, batch, 256) for batch in (1, 64)] == [256, 256]
    requests = [Request(list(range(9)) * 9, SamplingParams()) for _ in range(4)]
    for drafter, most in ((free, 100), (fixed, 24)):
        for request in requests:
            drafter.start(request)
        assert [len(tree) for tree in drafter.propose(requests, [100, 16, 8, 0])] == [
            most,
            16,
            8,
            0,
        ]


@pytest.mark.parametrize("fusion", FUSIONS)
def test_batched_drafts_equal_single_drafts(tmp_path: Path, fusion: str) -> None:
    path = str(store(tmp_path / "store"))
    rng = random.Random(5)
    texts = [[rng.randrange(VOCAB) for _ in range(rng.randint(1, 60))] for _ in range(33)]
    drafter = Sssd(SssdOptions(path, fusion))
    requests = [Request(text, SamplingParams(max_new_tokens=9)) for text in texts]
    for request in requests:
        drafter.start(request)
    together = drafter.propose(requests, [12] * len(requests))
    assert together == [drafted(drafter, text, 12, 9) for text in texts]
    assert drafter.propose([], []) == []


def test_pointers_are_sampled_at_regular_intervals(tmp_path: Path) -> None:
    """Check the intervals over all shards together."""
    documents = random_documents(200)
    datastore.build(tmp_path / "store", documents, VOCAB, shard_tokens=1024, workers=1)
    snapshot = datastore.open(tmp_path / "store").snapshot
    assert len(snapshot.shards) > 1
    pool = new_pool(200, 64, 1, len(snapshot.shards))
    pointers: Any = pool.pointers
    for token in range(VOCAB):
        pool.tail[LONGEST - 1], ranges = token, pool.ranges[0]
        total, _ = _look_up(snapshot.table, pool.tail, LONGEST - 1, LONGEST, ranges)
        every = [
            (_suffix_at(snapshot.table, s, rank) + 1, s)
            for s in range(len(ranges))
            for rank in range(*ranges[s].item())
        ]
        assert total == len(every) == sum(document.count(token) for document in documents)
        matches = SuffixMatches(1, ranges, total)
        for most in (1, 7, 50):
            query = Query(pool.tail, LONGEST - 1, LONGEST)
            count, _ = _sample(snapshot.table, pool, 0, query, matches, LONGEST + 1, most)
            assert pointers[["position", "shard"]][:count].tolist() == [
                every[i * total // most] for i in range(most)
            ]


def test_confidences_equal_the_networks_output(tmp_path: Path) -> None:
    rng = random.Random(6)
    documents = [[rng.randrange(60) for _ in range(40)] for _ in range(80)]
    path = store(tmp_path / "store", documents, 60)
    weights, inputs = load_weights(), len(FEATURES)
    first, bias = (
        weights[: inputs * HIDDEN].reshape(inputs, HIDDEN),
        weights[inputs * HIDDEN : (inputs + 1) * HIDDEN],
    )
    second, last = weights[(inputs + 1) * HIDDEN : -1], weights[-1]
    for _ in range(30):
        text = [rng.randrange(60) for _ in range(8)]
        offered = offered_tokens(text, path)
        for token, confidence in candidates(text, path).items():
            units = np.maximum(list(offered[token].values()) @ first + bias, 0)
            assert confidence == pytest.approx(1 / (1 + np.exp(-(units @ second + last))), abs=1e-5)


def test_a_period_is_continued_beyond_the_text() -> None:
    """Check that a match that reaches the newest token continues with drafted tokens."""
    tree = drafted(create("sssd"), [1, 2, 3, 4] * 8, 32)  # type: ignore[arg-type]
    assert max(paths(tree), key=len)[:20] == [1, 2, 3, 4] * 5


def test_paper_fusion_by_hand() -> None:
    """Check 1 2, which was followed by 3 twice and by 4 once.

    Matches of both lengths give 0.6 times the share.
    """
    text = [1, 2, 3, 9, 1, 2, 3, 8, 1, 2, 4, 7, 5, 1, 2]
    tree = drafted(create("sssd:fusion=paper"), text, 4)  # type: ignore[arg-type]
    assert tree.confidence is not None
    assert tree.token_ids[0] == 3
    assert tree.confidence[0] == pytest.approx(0.6 * 2 / 3, abs=1e-6)
    first_below = tree.parents.index(0)
    assert tree.confidence[first_below] == pytest.approx(0.5 * (0.6 + 0.1 * 2), abs=1e-6)
    assert [_branch_length(nodes) for nodes in (1, 4, 5, 8, 9, 32, 33, 48, 49)] == [
        1,
        3,
        4,
        5,
        6,
        6,
        8,
        8,
        10,
    ]


def test_finished_answers_become_searchable(tmp_path: Path) -> None:
    path = store(tmp_path / "store", [[0, 1]], vocab_size=100)
    drafter = Sssd(SssdOptions(str(path), update_datastore=True))
    request = Request([5, 6, 7, 8], SamplingParams(max_new_tokens=5))
    drafter.start(request)
    drafter.propose([request], [4])
    request.append([50, 51, 52, 53, 54])
    drafter.stop(request)
    assert drafter._store is not None
    drafter._store.flush()
    assert paths(drafted(drafter, [20, 50, 51], 3))[-1] == [52, 53, 54]
    with datastore.open(path) as opened:
        assert opened.snapshot.find([[7, 8, 50]]).lengths[0, 0] == 3


@pytest.mark.parametrize("spec", ["sssd", "auto"])
def test_a_store_for_updates_is_created(spec: str, tmp_path: Path, pair: Pair) -> None:
    """A second engine, as after a restart, drafts from the answers in the new store."""
    path, prompt = tmp_path / "new" / "store", pair.prompts[0]
    for run in range(2):
        updated = f"{spec}:datastore={path},update_datastore=true"
        llm = LLM(pair.target, updated, tokenizer=byte_tokenizer())
        (answer,) = llm.generate([prompt], SamplingParams(max_new_tokens=24))
        assert answer.token_ids == pair.answers[0][:24]
        drafter: Any = llm.drafter
        retrieval: Any = drafter if spec == "sssd" else drafter._retrieval
        retrieval._store.close()
        info = datastore.info(path)
        assert (info.documents, info.vocab_size) == (run + 1, llm.model.vocab_size)
        assert info.tokenizer == datastore.fingerprint_of(byte_tokenizer())
        assert not datastore.verify(path)


def test_a_missing_store_is_refused_without_a_target(tmp_path: Path) -> None:
    drafter = create(f"sssd:datastore={tmp_path / 'new'},update_datastore=true")
    with pytest.raises(DatastoreError, match="there is no store"):
        drafter.check_tokenizer(None)


def test_answers_are_drafted_for_other_requests(tmp_path: Path) -> None:
    path = store(tmp_path / "store", [[0, 1]], vocab_size=100)
    drafter = Sssd(SssdOptions(str(path), update_datastore=True))
    one, other = (
        Request(prompt, SamplingParams(max_new_tokens=9)) for prompt in ([5, 6, 7, 8], [20, 30, 31])
    )
    for request in (one, other):
        drafter.start(request)
    assert not paths(drafter.propose([one, other], [4, 4])[1])
    one.append([50, 51, 52, 53])
    other.append([21])
    drafter.propose([one, other], [4, 4])
    one.append([54])
    other.append([50, 51])
    until = time.monotonic() + 90
    while [52, 53, 54] not in paths(drafter.propose([one, other], [4, 4])[1]):
        assert time.monotonic() < until
        time.sleep(0.01)
    drafter.stop(one)
    drafter.stop(other)
    assert drafter._store is not None
    drafter._store.close()
    assert datastore.info(path).tokens == 2 + 8 + 6  # each answer is stored once


def test_damaged_shard_is_named(tmp_path: Path) -> None:
    path = store(tmp_path / "store", random_documents(400))
    for fusion in FUSIONS:
        drafter = Sssd(SssdOptions(str(path), fusion))
        (shard,) = [one for one in path.iterdir() if one.suffix not in (".json", ".lock")]
        content = bytearray(shard.read_bytes())
        content[4096 : len(content) - 4096] = bytes(
            byte ^ 1 for byte in content[4096 : len(content) - 4096]
        )
        whole = shard.read_bytes()
        with shard.open("r+b") as file:
            file.write(content)
        with pytest.raises(DatastoreError, match=shard.name):
            drafted(drafter, [1, 2, 3], 8)
        with shard.open("r+b") as file:
            file.write(whole)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("sssd:fusion=sum", "calibrated, paper"),
        ("sssd:max_nodes=0", "max_nodes: got 0"),
        ("sssd:update_datastore=true", "without a datastore"),
        ("sssd:datastore=demo,update_datastore=true", "only read"),
    ],
)
def test_invalid_options_are_refused(spec: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        create(spec)


def test_missing_datastore_is_refused() -> None:
    with pytest.raises(DatastoreError, match="no store"):
        create("sssd:datastore=nowhere")


def test_damaged_weights_are_refused(tmp_path: Path) -> None:
    content = json.loads(WEIGHTS_FILE.read_text())
    nothing = base64.b64encode(np.zeros(3, np.float32).tobytes()).decode()
    changes: list[dict[str, object]] = [
        {"weights": nothing},
        {"weights": nothing, "sha256": None},
        {"inputs": ["x"]},
        {"sha256": "0"},
    ]
    path = tmp_path / "c.json"
    for change in changes:
        path.write_text(json.dumps({**content, **change}))
        with pytest.raises(ConfigError, match="damaged"):
            load_weights(path)
    path.write_text(WEIGHTS_FILE.read_text()[:500])
    with pytest.raises(ConfigError, match=r"c\.json"):
        load_weights(path)


def test_datastore_raises_tokens_per_step(tmp_path: Path) -> None:
    """Check that an answer in the datastore is drafted from it."""
    rng = random.Random(9)
    documents = [[rng.randrange(500) for _ in range(80)] for _ in range(30)]
    traces = [(document[:4], document[4:]) for document in documents]
    path = str(store(tmp_path / "store", documents, vocab_size=500))
    for fusion in FUSIONS:
        alone = replay(create("sssd", fusion=fusion), traces)
        assert (
            replay(create("sssd", datastore=path, fusion=fusion), traces).tokens_per_step
            > 3 * alone.tokens_per_step
        )


def test_datastore_with_a_larger_vocabulary_is_refused(tmp_path: Path) -> None:
    path = store(tmp_path / "store", vocab_size=100)
    with pytest.raises(
        ConfigError, match="vocabulary of 100 tokens; expected at most 50, the target's"
    ):
        check_vocabulary(create("sssd", datastore=str(path)), 50)
