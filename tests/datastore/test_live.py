"""Test outputs appended to an open datastore: searchable, stored, bounded and shared."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from paceline import datastore
from paceline.datastore.live import Datastore
from paceline.datastore.lock import writing
from paceline.datastore.options import UpdateOptions
from paceline.errors import ConfigError, DatastoreError
from tests.support.stores import looked_up, store

OUTPUT = [5, 4, 3, 2, 1]


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 90
    while not condition():
        assert time.monotonic() < end, "it did not happen in 90 s"
        time.sleep(0.005)


def occurs(opened: Datastore, query: list[int]) -> bool:
    """Return whether the whole of `query` occurs."""
    return len(looked_up(opened.snapshot, query, 1)) == len(query)


def test_appended_output_is_found_and_stored(tmp_path: Path) -> None:
    path = store(tmp_path / "s", [[0, 1]])
    with datastore.open(path) as opened:
        before = opened.snapshot
        opened.append(OUTPUT)
        wait_for(lambda: occurs(opened, OUTPUT))
        assert len(datastore.info(path).shards) == 1  # in memory only
        assert len(before.shards) == 1
        opened.append([])
        opened.append([4, 4, 4, 4])
    assert occurs(opened, [4, 4, 4, 4])
    again = datastore.open(path)
    assert occurs(again, OUTPUT)
    assert occurs(again, [0, 1])
    assert [shard.live for shard in datastore.info(path).shards] == [False, True]
    with pytest.raises(DatastoreError, match="is closed"):
        opened.append(OUTPUT)


def test_running_outputs_are_found_but_not_stored(tmp_path: Path) -> None:
    path = store(tmp_path / "s", [[0, 1]], 10)
    with datastore.open(path) as opened:
        opened.follow({1: OUTPUT[:2], 2: [6, 6]})
        opened.follow({1: OUTPUT[2:]})
        wait_for(lambda: occurs(opened, OUTPUT))
        opened.append([7, 7])
        opened.flush()
        wait_for(lambda: occurs(opened, OUTPUT))  # writing others to disk leaves it in place
        opened.unfollow(2)
        opened.append([8, 8])
        wait_for(lambda: occurs(opened, [8, 8]))
        assert not occurs(opened, OUTPUT)  # the only running request knows its own text
        opened.follow({2: [6, 9]})
        wait_for(lambda: occurs(opened, OUTPUT) and occurs(opened, [6, 9]))
        assert not occurs(opened, [6, 6])
    assert datastore.info(path).tokens == 6
    with pytest.raises(DatastoreError, match="is closed"):
        opened.follow({1: OUTPUT})


def test_longest_running_output_is_dropped_first(tmp_path: Path) -> None:
    path, options = store(tmp_path / "s", [[0, 1]], 10), UpdateOptions(max_unwritten_tokens=8)
    with datastore.open(path, updates=options) as opened:
        opened.follow({1: [2, 2, 2], 2: [3, 3], 3: [4, 4]})
        wait_for(lambda: occurs(opened, [2, 2, 2]) and occurs(opened, [4, 4]))
        opened.follow({3: [4, 4]})
        wait_for(lambda: occurs(opened, [3, 3]) and not occurs(opened, [4, 4]))
        opened.follow({3: [5, 5]})
        wait_for(lambda: occurs(opened, [5, 5]) and occurs(opened, [2, 2, 2]))
        with pytest.raises(DatastoreError, match="token id 10"):
            opened.follow({3: [10]})


def test_full_or_old_output_is_written_to_disk(tmp_path: Path) -> None:
    for options in (UpdateOptions(max_unwritten_tokens=8), UpdateOptions(max_unwritten_s=0.05)):
        path = store(tmp_path / str(options.max_unwritten_tokens), [[0, 1]])
        with datastore.open(path, updates=options) as opened:
            opened.append(OUTPUT)
            opened.append(OUTPUT)
            wait_for(lambda path=path: datastore.info(path).tokens == 12)  # type: ignore[misc]
            wait_for(lambda opened=opened: occurs(opened, OUTPUT))  # type: ignore[misc]


def test_processes_see_what_others_appended(tmp_path: Path) -> None:
    path = store(tmp_path / "s", [[0, 1]])
    with datastore.open(path) as one, datastore.open(path) as other:
        one.append(OUTPUT)
        one.flush()
        other.append([2, 2, 2])
        other.flush()
        assert occurs(other, OUTPUT)
        assert not occurs(one, [2, 2, 2])
        one.refresh()
        assert occurs(one, [2, 2, 2])


def test_oldest_outputs_are_dropped(tmp_path: Path) -> None:
    path = store(tmp_path / "s", [[0, 1]], 100)
    with datastore.open(path, updates=UpdateOptions(max_tokens=4096)) as opened:
        for token in range(60):
            opened.append([token] * 100)
            opened.flush()
        info = datastore.info(path)
        assert 2000 < info.tokens <= 4098
        assert len(info.shards) < 12
        assert not occurs(opened, [0, 0])
        assert occurs(opened, [59, 59])
        assert occurs(opened, [0, 1])  # built documents stay


def test_append_waits_for_another_writer(tmp_path: Path) -> None:
    path = store(tmp_path / "s", [[0, 1]])
    opened = datastore.open(path, updates=UpdateOptions(max_unwritten_tokens=1, lock_timeout_s=0.0))
    with writing(path, "build"):
        opened.append(OUTPUT)
        wait_for(lambda: occurs(opened, OUTPUT))  # from memory
        with pytest.raises(DatastoreError, match=r"\(build\)"):
            opened.flush()
    wait_for(lambda: datastore.info(path).tokens == 7)
    opened.close()


def test_outputs_lost_at_exit_are_reported(tmp_path: Path) -> None:
    path = store(tmp_path / "s", [[0, 1]])
    opened = datastore.open(path, updates=UpdateOptions(lock_timeout_s=0.0))
    opened.append(OUTPUT)
    with writing(path, "build"), pytest.warns(UserWarning, match=r"are lost: .*\(build\)"):
        opened._close_at_exit()


def test_replaced_datastore_is_not_written(tmp_path: Path) -> None:
    path = store(tmp_path / "s", [[0, 1]])
    opened = datastore.open(path)
    opened.append(OUTPUT)
    datastore.build(path, [[7]], 10)
    for use in (opened.flush, opened.refresh, opened.close):
        with pytest.raises(DatastoreError, match="was replaced"):
            use()
    assert datastore.info(path).tokens == 1


def test_invalid_outputs_and_options_are_refused(tmp_path: Path) -> None:
    opened = datastore.open(store(tmp_path / "s"))
    with pytest.raises(DatastoreError, match="token id 6; expected 0 to 5"):
        opened.append([6])
    with pytest.raises(ConfigError, match="max_tokens >= 4096"):
        UpdateOptions(max_tokens=1)
