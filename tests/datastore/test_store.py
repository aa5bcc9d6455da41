"""Test searches of datastores against a plain search, shards, documents and bad input."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline import SamplingParams, datastore
from paceline.core.request import Request
from paceline.core.tree import EMPTY_TREE
from paceline.datastore.hashing import hash_pages
from paceline.datastore.rows import DAMAGED, Query, within
from paceline.datastore.search import narrow, range_of, read, suffix_at
from paceline.datastore.store_settings import SORTED_TOKENS
from paceline.datastore.suffixes import suffix_array
from paceline.drafters import create
from paceline.errors import ConfigError, DatastoreError
from paceline.util.machine import usable_cores
from tests.support.kernels import from_python
from tests.support.stores import Documents, expected, looked_up, random_documents, store

_range_of = from_python(range_of)
_narrow = from_python(narrow)
_within = from_python(within)
_suffix_at = from_python(suffix_at)
_read = from_python(read)

VOCABULARIES = [1, 2, 300, 65535, 65536, 2**20, 2**23, 2**32 - 1, 2**32]


@st.composite
def corpora(draw: st.DrawFn) -> tuple[int, Documents, list[int]]:
    """Generate a vocabulary size, documents of ids from one of its ends, and a query."""
    vocab_size = draw(st.sampled_from(VOCABULARIES))
    few = min(vocab_size, 3)
    ids = (
        st.integers(0, few - 1)
        if draw(st.booleans())
        else st.integers(vocab_size - few, vocab_size - 1)
    )
    documents = draw(st.lists(st.lists(ids, min_size=1, max_size=12), min_size=1, max_size=12))
    return vocab_size, documents, draw(st.lists(ids, max_size=6))


@settings(max_examples=40, deadline=None)
@given(corpus=corpora())
def test_search_equals_a_plain_search(
    tmp_path_factory: pytest.TempPathFactory, corpus: tuple[int, Documents, list[int]]
) -> None:
    vocab_size, documents, query = corpus
    opened = datastore.open(store(tmp_path_factory.mktemp("store"), documents, vocab_size))
    assert looked_up(opened.snapshot, query, 8) == expected(documents, query, 8)


def test_many_shards_answer_like_one(tmp_path: Path) -> None:
    documents = random_documents(300)
    datastore.build(tmp_path / "s", documents, 6, shard_tokens=1024, workers=2)
    opened = datastore.open(tmp_path / "s")
    assert len(opened.snapshot.shards) > 3
    assert datastore.info(tmp_path / "s").tokens == sum(map(len, documents))
    assert looked_up(opened.snapshot, documents[7][:5], 9) == expected(
        documents, documents[7][:5], 9
    )


def test_document_longer_than_a_shard_is_cut(tmp_path: Path) -> None:
    datastore.build(tmp_path / "s", [list(range(3000))], 3000, shard_tokens=1024)
    info = datastore.info(tmp_path / "s")
    assert (info.tokens, info.documents, len(info.shards)) == (3000, 3, 3)


def test_continuations_end_with_their_document(tmp_path: Path) -> None:
    opened = datastore.open(store(tmp_path / "s", [[1, 2, 3], [4, 5], [1, 2]]))
    assert looked_up(opened.snapshot, [1, 2], 5)[0] == [[], [3]]


def test_sampling_is_at_regular_intervals(tmp_path: Path) -> None:
    opened = datastore.open(store(tmp_path / "s", [[0, token] for token in range(100)], 100))
    ranges = opened.snapshot.find([[0]])
    ids, lengths = opened.snapshot.gather(ranges.low[:, 0], ranges.high[:, 0], np.array([1]), 4, 2)
    assert lengths.tolist() == [[1, 1, 1, 1]]
    assert ids[0, :, 0].tolist() == [
        0,
        25,
        50,
        75,
    ]  # the tokens after each 0, in suffix order


def test_shorter_suffixes_are_searched_until_enough(tmp_path: Path) -> None:
    documents = random_documents()
    snapshot = datastore.open(store(tmp_path / "s", documents)).snapshot
    query = documents[3][:8]
    counts = [len(answer) for answer in expected(documents, query, 1)]
    ranges = snapshot.find([query, []], enough=counts[0] + 1)
    longest, shortest = ranges.lengths[0]
    assert longest == len(counts)
    assert (
        sum(counts[: longest - shortest]) < counts[0] + 1 <= sum(counts[: longest - shortest + 1])
    )
    assert ranges.lengths[1].tolist() == [0, 0]


def test_narrowed_range_equals_a_longer_search(tmp_path: Path) -> None:
    documents = random_documents()
    snapshot = datastore.open(store(tmp_path / "s", documents)).snapshot
    for token in range(6):
        ids = np.array([2, 1, token])
        low, high = _range_of(snapshot.table, 0, ids, 0, 2)
        assert _narrow(snapshot.table, 0, low, high, 2, Query(ids, 2, 3)) == _range_of(
            snapshot.table, 0, ids, 0, 3
        )
    assert _narrow(snapshot.table, 0, 0, 5, SORTED_TOKENS, Query(ids, 0, 1)) == (0, 0)


@pytest.mark.parametrize("vocab_size", [6, 400, 2**20])
def test_pivots_equal_bisection(tmp_path: Path, vocab_size: int) -> None:
    """Check ids that fill many pivots, one or none, and short and long queries."""
    rng = random.Random(vocab_size)
    documents = [[int(vocab_size * rng.random() ** 4) for _ in range(40)] for _ in range(150)]
    snapshot = datastore.open(store(tmp_path / "s", documents, vocab_size)).snapshot
    table = snapshot.table
    for _ in range(2000):
        document, size = rng.choice(documents), rng.randint(1, 6)
        begin = rng.randrange(len(document) - size)
        ids = np.array(document[begin : begin + size])
        ids[rng.randrange(size)] = rng.choice([ids[-1], rng.randrange(vocab_size)])
        plain = _within(table[0], 0, int(table["suffix_count"][0]), 0, Query(ids, 0, size))
        assert _range_of(table, 0, ids, 0, size) == plain


def test_positions_out_of_range_are_not_read(tmp_path: Path) -> None:
    """Check a forged datastore whose checksums are correct."""
    snapshot = datastore.open(store(tmp_path / "s")).snapshot
    table = snapshot.table.copy()
    table["text_size"] = 1
    assert _range_of(table, 0, np.array([3]), 0, 1) == (DAMAGED, 0)
    assert _suffix_at(table, 0, -1) == _suffix_at(table, 0, 10**9) == DAMAGED
    assert _read(table, 0, 5, np.zeros(4, dtype=np.int64)) == 0


@pytest.mark.parametrize("most", [1, 2, 40, 5_000_000, 2**32 - 2])
@pytest.mark.parametrize("workers", [1, 3])
def test_suffix_array(most: int, workers: int) -> None:
    rng = np.random.default_rng(most)
    separator = 2**32 - 1
    text = rng.integers(max(0, most - 3), most, 400, dtype=np.uint32)
    text[rng.random(400) < 0.02] = separator
    text[-1] = separator
    found = suffix_array(text, separator, workers).tolist()
    assert sorted(found) == np.flatnonzero(text != separator).tolist()
    suffixes = [text[start : start + SORTED_TOKENS].tolist() for start in found]
    cut = [
        suffix[: suffix.index(separator) + 1] if separator in suffix else suffix
        for suffix in suffixes
    ]
    assert cut == sorted(cut)


def test_one_repeated_token_is_sorted() -> None:
    text = np.append(np.zeros(200_000, dtype=np.uint32), np.uint32(65535))
    found = suffix_array(text, 65535)
    assert found[:-SORTED_TOKENS].tolist() == list(range(200_000 - SORTED_TOKENS))


def test_checksum_is_xxh64() -> None:
    """Compare with values of the xxhash library 0.8."""
    pages = np.concatenate((np.zeros(4096), np.arange(4096) % 251)).astype(np.uint8)
    sums = np.zeros(2, dtype=np.uint64)
    hash_pages(pages.ctypes.data, sums)
    assert sums.tolist() == [0xAC869B6F32D8BBDB, 0x122A8C8D994AD3EC]


@pytest.mark.parametrize(
    ("documents", "message"),
    [
        ([], "contain no tokens"),
        ([[], []], "contain no tokens"),
        ([[1], [2, 10]], "document 1: got the token id 10; expected 0 to 9"),
        ([[1, -1]], "document 0: got the token id -1"),
        ([[2**70]], "document 0"),
        ([[1.5]], "document 0: got list of float64"),
        (["text"], "Tokenize text first"),
        ([[[1, 2]]], "2 dimensions"),
    ],
)
def test_invalid_documents_leave_the_datastore_unchanged(
    tmp_path: Path, documents: Any, message: str
) -> None:
    path = store(tmp_path / "s", [[1, 2]], 10)
    with pytest.raises(DatastoreError, match=message):
        datastore.build(path, documents, 10)
    with pytest.raises(DatastoreError, match=message):
        datastore.add(path, documents)
    assert datastore.verify(path) == []
    assert len(list(path.glob("shard-*"))) == 1


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("vocab_size", 0),
        ("vocab_size", 2**32 + 1),
        ("shard_tokens", 5),
        ("memory", 1),
        ("workers", -1),
    ],
)
def test_arguments_out_of_range(tmp_path: Path, option: str, value: int) -> None:
    arguments: Any = {"vocab_size": 10, option: value}
    with pytest.raises(ConfigError, match=f"{option}(=|: got ){value}"):
        datastore.build(tmp_path / "s", [[1]], **arguments)
    assert not (tmp_path / "s").exists()


def test_lengths_out_of_range(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="longest=65"):
        datastore.open(store(tmp_path / "s")).snapshot.find([[1]], longest=65)


def test_an_empty_store_is_searched_and_extended(tmp_path: Path) -> None:
    path = tmp_path / "new" / "store"
    for vocab_size in (100, 200):  # the second call finds the store
        datastore.create(path, vocab_size)
    found = datastore.info(path)
    assert (found.vocab_size, found.documents, found.tokens) == (100, 0, 0)
    assert not datastore.verify(path)
    drafter = create(f"rest:datastore={path}")
    request = Request([1, 2, 3], SamplingParams())
    drafter.start(request)
    assert drafter.propose([request], [8]) == [EMPTY_TREE]
    datastore.add(path, [[1, 2, 3, 4, 5]])
    assert datastore.info(path).documents == 1
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").touch()
    with pytest.raises(DatastoreError, match=r"not a store, because it holds 'notes\.txt'"):
        datastore.create(tmp_path / "full", 100)


def test_another_tokenizer_is_refused(tmp_path: Path) -> None:
    one, other = f"sha256:{'0' * 64}", f"sha256:{'1' * 64}"
    datastore.build(tmp_path / "s", [[1]], 10, tokenizer=one)
    assert datastore.open(tmp_path / "s", tokenizer=one).tokenizer == one
    for use in (
        lambda: datastore.open(tmp_path / "s", tokenizer=other),
        lambda: datastore.add(tmp_path / "s", [[1]], tokenizer=other),
    ):
        with pytest.raises(DatastoreError, match=f"{one}.*{other}"):
            use()
    with pytest.raises(ConfigError, match="fingerprint"):
        datastore.open(tmp_path / "s", tokenizer="gpt2")


def test_unrelated_folder_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(DatastoreError, match=r"letter\.txt"):
        datastore.build(tmp_path, [[1]], 10)
    with pytest.raises(DatastoreError, match="there is no store"):
        datastore.open(tmp_path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["letter.txt"]


def test_added_documents_are_found_and_shards_stay_few(tmp_path: Path) -> None:
    path, documents = store(tmp_path / "s", [[1, 2, 3]]), [[1, 2, 3]]
    reader = datastore.open(path)
    for seed in range(60):
        more = random_documents(3, seed=seed)
        documents += more
        datastore.add(path, more)
    assert len(datastore.info(path).shards) <= 5
    assert datastore.verify(path) == []
    assert looked_up(reader.snapshot, [1, 2], 4) == expected(
        [[1, 2, 3]], [1, 2], 4
    )  # unchanged until it refreshes
    assert reader.refresh()
    assert not reader.refresh()
    assert looked_up(reader.snapshot, [5, 1, 2], 4) == expected(documents, [5, 1, 2], 4)


def test_shards_with_different_separators_are_merged(tmp_path: Path) -> None:
    last = 2**32 - 1
    path, documents = store(tmp_path / "s", [[5], [last, last - 1]], 2**32), [[5], [last, last - 1]]
    for token in (last - 2, 7):
        documents.append([token, last])
        datastore.add(path, [[token, last]])
    assert len(datastore.info(path).shards) == 1
    snapshot = datastore.open(path).snapshot
    for query in ([last], [7, last], [last, last - 1], [last - 3], [5]):
        assert looked_up(snapshot, query, 3) == expected(documents, query, 3)


def test_datastore_does_not_import_torch() -> None:
    code = "import sys, paceline.datastore; assert not {'torch', 'transformers'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_build_works_without_processor_affinity(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check systems other than Linux."""
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert usable_cores() == 1
    datastore.build(tmp_path / "s", [[1, 2]], 6)
    assert datastore.info(tmp_path / "s").tokens == 2


def test_unlockable_folder_is_named(tmp_path: Path) -> None:
    path = store(tmp_path / "s", [[1, 2]])
    (path / "writer.lock").unlink(missing_ok=True)
    (path / "writer.lock").mkdir()
    with pytest.raises(DatastoreError, match=r"s' cannot be written.*writer\.lock"):
        datastore.add(path, [[1]])
