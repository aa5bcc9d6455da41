"""Test datastores that are damaged, partly written, full or locked.

They must give an error that names the file, or the correct answer.
"""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from paceline import datastore
from paceline.datastore.layout import read_manifest, write_manifest
from paceline.datastore.lock import writing
from paceline.datastore.shard import find_damage
from paceline.errors import DatastoreError
from tests.support.stores import Documents, expected, looked_up, random_documents, store

QUERY = [1, 2, 0, 3]


@pytest.mark.parametrize("trials", [300, pytest.param(10_000, marks=pytest.mark.slow)])
def test_damaged_files_give_an_error_or_correct_answers(tmp_path: Path, trials: int) -> None:
    documents = random_documents(200)
    path = tmp_path / "s"
    datastore.build(path, documents, 6, shard_tokens=2048, workers=1)
    truth = expected(documents, QUERY, 4)
    files = {file: file.read_bytes() for file in path.iterdir() if file.name != "writer.lock"}
    rng = random.Random(0)
    errors = 0
    for _ in range(trials):
        file = rng.choice(sorted(files))
        file.write_bytes(corrupted(files[file], rng))
        try:
            assert looked_up(datastore.open(path).snapshot, QUERY, 4) == truth
        except DatastoreError as error:
            errors += 1
            assert file.name in str(error)  # noqa: PT017
        file.write_bytes(files[file])
    assert errors > trials / 4


def corrupted(content: bytes, rng: random.Random) -> bytes:
    """Return the content with flipped bits, without its end, or with extra bytes."""
    kind = rng.random()
    if kind < 0.2:
        return content[: rng.randrange(len(content))]
    if kind < 0.25:
        return content + bytes(rng.randrange(1, 5000))
    changed = bytearray(content)
    for _ in range(rng.choice([1, 1, 2, 50])):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def test_verify_names_every_damaged_shard(tmp_path: Path) -> None:
    path = tmp_path / "s"
    datastore.build(path, random_documents(400), 6, shard_tokens=1024, workers=1)
    flipped, cut, gone, sound = sorted(path.glob("shard-*"))[:4]
    content = bytearray(flipped.read_bytes())
    content[4096 * 2 + 7] ^= 1
    flipped.write_bytes(content)
    os.truncate(cut, 5000)
    gone.unlink()
    found = {damage.file: damage.what for damage in datastore.verify(path)}
    assert set(found) == {flipped.name, cut.name, gone.name}
    assert "1 of" in found[flipped.name]
    assert found[flipped.name].endswith("damaged: 2")
    assert "5000 bytes instead of" in found[cut.name]
    assert found[gone.name] == "it is missing"
    assert sound.name not in found
    with pytest.raises(DatastoreError, match=f"{cut.name}|{gone.name}"):
        datastore.open(path)


def test_shards_replaced_during_verification_are_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = store(tmp_path / "s")

    def check_after_rebuild(*arguments: Any) -> str | None:
        datastore.build(path, random_documents(seed=1), 6, workers=1)
        return find_damage(*arguments)

    monkeypatch.setattr("paceline.datastore.report.find_damage", check_after_rebuild)
    assert datastore.verify(path) == []


def test_damaged_datastore_can_be_rebuilt(tmp_path: Path) -> None:
    path = store(tmp_path / "s")
    (path / "manifest.json").write_text('{"format"')
    assert datastore.verify(path)[0].file == "manifest.json"
    with pytest.raises(DatastoreError, match=r"manifest\.json is damaged"):
        datastore.add(path, [[1]])
    datastore.build(path, [[1, 2]], 6)
    assert datastore.info(path).tokens == 2
    assert len(list(path.glob("shard-*"))) == 1


def test_later_version_is_refused(tmp_path: Path) -> None:
    path = store(tmp_path / "s")
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps({**manifest, "version": 2}))
    with pytest.raises(DatastoreError, match="has version 2; expected 1"):
        datastore.open(path)


def test_manifest_of_another_datastore_is_refused(tmp_path: Path) -> None:
    path, other = store(tmp_path / "s"), store(tmp_path / "t", [[1, 2, 3]])
    write_manifest(path, read_manifest(other))
    with pytest.raises(DatastoreError, match="but the file is missing"):
        datastore.open(path)


def test_full_disk_keeps_the_old_datastore(tmp_path: Path) -> None:
    path = store(tmp_path / "s", [[1, 2, 3]])
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
    try:
        for write in (datastore.add, lambda path, documents: datastore.build(path, documents, 6)):
            with pytest.raises(DatastoreError, match="The store is unchanged"):
                write(path, random_documents(2000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert datastore.verify(path) == []
    assert len(list(path.glob("shard-*"))) == 1
    assert looked_up(datastore.open(path).snapshot, [1], 2) == [[[2, 3]]]


def test_second_writer_gets_an_error_that_names_the_first(tmp_path: Path) -> None:
    path = store(tmp_path / "s", [[1, 2, 3]])
    with writing(path, "build"):
        for write in (datastore.add, lambda path, documents: datastore.build(path, documents, 6)):
            with pytest.raises(
                DatastoreError, match=rf"Process {os.getpid()} on \S+ since .*\(build\)"
            ):
                write(path, [[1]])
        # readers do not wait
        assert looked_up(datastore.open(path).snapshot, [1], 2) == [[[2, 3]]]
    datastore.add(path, [[1]])


WRITER = """
import sys
sys.path[:0] = [{folder!r}]
from tests.support.stores import random_documents
from paceline import datastore
for seed in range(10**6):
    if seed % 4:
        datastore.add({path!r}, random_documents(30, seed=seed), workers=1)
    else:
        datastore.build({path!r}, random_documents(200, seed=seed), 6, shard_tokens=1024, workers=1)
    print(seed, flush=True)
"""


@pytest.mark.parametrize("kills", [2, pytest.param(40, marks=pytest.mark.slow)])
def test_killed_writer_leaves_an_intact_datastore(tmp_path: Path, kills: int) -> None:
    path, rng = tmp_path / "s", random.Random(kills)
    code = WRITER.format(path=str(path), folder=str(Path(__file__).parents[2]))
    for _ in range(kills):
        writer = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        assert writer.stdout is not None
        writer.stdout.readline()
        time.sleep(rng.random() * 0.3)
        writer.send_signal(signal.SIGKILL)
        done = [0, *map(int, writer.stdout.read().split())][-1]
        writer.wait()
        writer.stdout.close()
        assert datastore.verify(path) == []
        snapshot = datastore.open(path).snapshot
        assert looked_up(snapshot, QUERY, 4) in [
            expected(documents_after(last), QUERY, 4) for last in (done, done + 1)
        ]
        # the lock ended with its process, and leftover files are removed
        datastore.add(path, [[1]])
        assert {file.name for file in path.glob("shard-*")} == {
            shard.name for shard in datastore.info(path).shards
        }


def documents_after(last: int) -> Documents:
    """Return the documents of the datastore after the writer's step `last`."""
    seeds = range(last - last % 4, last + 1)
    return [
        document
        for seed in seeds
        for document in random_documents(30 if seed % 4 else 200, seed=seed)
    ]
