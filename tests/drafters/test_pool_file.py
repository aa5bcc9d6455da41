"""Test the phrase pool's file: reuse across processes, refused files and failed saves."""

from __future__ import annotations

import gc
import os
import random
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import save_file

from paceline import LLM, Completion, SamplingParams
from paceline.drafters import create
from paceline.drafters.ouroboros.drafter import Ouroboros
from paceline.drafters.ouroboros.pool_file import PoolFile, pool_bytes, read_pool
from paceline.drafters.shared.ngram_pool import NgramPool
from paceline.errors import ConfigError
from tests.support.processes import exit_during_generation
from tests.support.shared import COUNT, Pair

PARAMS = SamplingParams(max_new_tokens=COUNT)


def some_pool(seed: int = 0, keys: int = 40) -> NgramPool:
    pool, rng = NgramPool(3, keys=keys), random.Random(seed)
    for _ in range(200):
        pool.add(
            tuple(rng.choices(range(50), k=2)), tuple(rng.choices(range(50), k=rng.randint(1, 5)))
        )
    return pool


def count_forwards(outs: list[Completion]) -> int:
    return sum(out.stats.target_forwards for out in outs)


def new_drafter(pair: Pair, path: Path, **options: Any) -> Ouroboros:
    made = create("ouroboros", draft_model=pair.draft, pool_file=str(path), budget=False, **options)
    assert isinstance(made, Ouroboros)
    return made


def check_run(pair: Pair, made: Ouroboros, batch: int = 4) -> list[Completion]:
    outs = LLM(pair.target, made, max_batch=batch).generate(pair.prompts, PARAMS)
    assert [out.token_ids for out in outs] == pair.answers
    return outs


@pytest.mark.parametrize("keys", [0, 1, 40])
def test_loaded_pool_keeps_its_order(tmp_path: Path, keys: int) -> None:
    pool = some_pool(keys=keys) if keys else NgramPool(3)
    path = tmp_path / "phrases.pool"
    path.write_bytes(pool_bytes(pool, 50))
    assert read_pool(path, 50) == list(pool.items())
    again = NgramPool(3, keys=40)
    PoolFile(str(path), again, 5, 50, cold=False)
    assert list(again.items()) == list(pool.items())


def test_loaded_phrases_are_cut_to_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "phrases.pool"
    path.write_bytes(pool_bytes(some_pool(), 50))
    pool = NgramPool(3, keys=40)
    PoolFile(str(path), pool, 2, 50, cold=False)
    assert {len(phrase) for _, phrases in pool.items() for phrase in phrases} == {1, 2}


def test_second_run_reuses_the_first_runs_pool(pair: Pair, tmp_path: Path) -> None:
    path = tmp_path / "phrases.pool"
    first = new_drafter(pair, path)
    cold = count_forwards(check_run(pair, first))
    assert path.exists()  # saved as soon as no request was waiting
    first.save_pool()
    content = path.read_bytes()
    warm = count_forwards(check_run(pair, new_drafter(pair, path)))
    assert warm < cold
    assert path.read_bytes() != content
    assert not list(tmp_path.glob("*.tmp"))


def test_later_phrases_are_saved_at_the_end(pair: Pair, tmp_path: Path) -> None:
    path = tmp_path / "phrases.pool"
    made = new_drafter(pair, path)
    check_run(pair, made, batch=1)
    # saved after the first answer; the others came too soon for a second save
    before = path.read_bytes()
    del made
    gc.collect()
    assert len(path.read_bytes()) > len(before)


def test_a_process_saves_when_it_ends(tmp_path: Path) -> None:
    path = tmp_path / "phrases.pool"
    exit_during_generation(
        f"LLM(demo.TARGET, drafter='ouroboros:pool_file={path}', draft_model=demo.DRAFT)"
    )
    assert path.stat().st_size > 100


def damage_bytes(content: bytes, rng: random.Random) -> bytes:
    place = rng.randrange(len(content))
    if rng.random() < 0.5:
        return content[:place]
    return (
        content[:place] + bytes([content[place] ^ (1 << rng.randrange(8))]) + content[place + 1 :]
    )


def test_damaged_files_are_refused_by_name(tmp_path: Path) -> None:
    content, rng = pool_bytes(some_pool(), 50), random.Random(1)
    path = tmp_path / "phrases.pool"
    for _ in range(2000):
        path.write_bytes(damage_bytes(content, rng))
        with pytest.raises(ConfigError, match=r"phrases\.pool.*on_invalid_file=reset"):
            read_pool(path, 50)


def test_file_of_another_padding(pair: Pair, tmp_path: Path) -> None:
    """Check that ids unknown to both models are dropped.

    Ids that only the target lacks must be refused.
    """
    path = tmp_path / "phrases.pool"
    pool = NgramPool(4)
    for key, phrase in (((3,), (4, 5)), ((3,), (280, 5)), ((290,), (1, 2))):
        pool.insert(key, phrase)
    path.write_bytes(pool_bytes(pool, 300))
    assert read_pool(path, 256) == [((3,), [(4, 5)])]
    assert len(read_pool(path, 320)) == 2
    made = new_drafter(pair, path)
    made.check_vocab_size(256)
    with pytest.raises(
        ConfigError, match="got ids up to 5; expected ids below 5, the rows of the target"
    ):
        made.check_vocab_size(5)


def test_file_of_another_kind_or_vocabulary_is_refused(pair: Pair, tmp_path: Path) -> None:
    path = tmp_path / "phrases.pool"
    path.write_bytes(pool_bytes(some_pool(), 50))
    with pytest.raises(
        ConfigError, match=f"got a vocabulary of 50 tokens; expected {pair.draft.config.vocab_size}"
    ):
        new_drafter(pair, path)
    path.write_bytes(path.read_bytes().replace(b'"version":"1"', b'"version":"9"'))
    with pytest.raises(ConfigError, match="got version '9'; expected '1'"):
        new_drafter(pair, path)
    save_file({}, path)
    with pytest.raises(ConfigError, match="expected 'paceline phrase pool'"):
        new_drafter(pair, path)
    path.write_bytes(b"")
    with pytest.raises(ConfigError, match="got a file that cannot be read"):
        new_drafter(pair, path)
    with pytest.raises(ConfigError, match="got a file that cannot be read"):
        new_drafter(pair, tmp_path)
    with pytest.raises(ConfigError, match="does not exist"):
        new_drafter(pair, tmp_path / "nowhere" / "phrases.pool")
    with pytest.raises(ConfigError, match="Choose one with pool_file=PATH"):
        create("ouroboros", draft_model=pair.draft).save_pool()  # type: ignore[attr-defined]
    with pytest.raises(
        ConfigError,
        match=r"got on_invalid_file='rest'; expected a known value\. Did you mean 'reset'",
    ):
        new_drafter(pair, path, on_invalid_file="rest")


def test_reset_keeps_a_copy_of_the_refused_file(pair: Pair, tmp_path: Path) -> None:
    path = tmp_path / "phrases.pool"
    theirs = pool_bytes(some_pool(), 50)
    path.write_bytes(theirs)
    with pytest.warns(UserWarning, match="The drafter starts with an empty pool"):
        made = new_drafter(pair, path, on_invalid_file="reset")
    assert path.read_bytes() == theirs
    check_run(pair, made)
    assert (tmp_path / "phrases.pool.refused").read_bytes() == theirs
    check_run(pair, new_drafter(pair, path))


def test_failed_save_leaves_file_and_requests_intact(
    pair: Pair, tmp_path: Path, monkeypatch: Any
) -> None:
    path = tmp_path / "phrases.pool"
    made = new_drafter(pair, path)
    check_run(pair, made)
    made.save_pool()
    before = path.read_bytes()

    def raise_disk_full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", raise_disk_full)
    again = new_drafter(pair, path)
    with pytest.warns(UserWarning, match="not saved.*No space left"):
        check_run(pair, again)
    with pytest.raises(ConfigError, match="No space left"):
        again.save_pool()
    monkeypatch.undo()
    assert path.read_bytes() == before
    assert not list(tmp_path.glob("*.tmp"))
