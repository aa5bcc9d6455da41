"""Test the file of recycled distributions across processes, and how damage is refused."""

from __future__ import annotations

import gc
import random
from pathlib import Path
from typing import Any

import pytest

from paceline import LLM, SamplingParams
from paceline.core.request import Request
from paceline.drafters import create
from paceline.drafters.ouroboros.pool_file import pool_bytes
from paceline.drafters.shared.ngram_pool import NgramPool
from paceline.drafters.shared.recycled_file import entries_of, read_table
from paceline.drafters.shared.recycler import Recycler
from paceline.errors import ConfigError
from tests.drafters.test_pool_file import damage_bytes
from tests.drafters.test_recycling import store_distributions
from tests.support.models import byte_tokenizer, piece_tokenizer
from tests.support.processes import exit_during_generation
from tests.support.shared import COUNT, Pair

DRAFTERS = ("token_recycling", "auto")
DISTRIBUTIONS = {(2,): [(7, 0.6), (9, 0.3)], (2, 7): [(5, 0.9)], (1, 2): [(7, 0.8)]}


def saved_recycler(path: Path, vocab_size: int = 50) -> Recycler:
    """Return a recycler that has learnt some distributions and saved them."""
    made = Recycler(3, rows=256, pool_path=str(path))
    store_distributions(made, DISTRIBUTIONS)
    made.calibration.hits[7] += 1
    made.calibration.trials[7] += 2
    assert made.pool_file is not None
    made.pool_file.check_vocabulary(vocab_size)
    made.pool_file.save()
    return made


def tokens_per_forward(pair: Pair, name: str, path: Path, **options: Any) -> float:
    """Return tokens per forward pass over all prompts, decoded one after the other."""
    llm = LLM(pair.target, create(name, pool_file=str(path), budget=False, **options), max_batch=1)
    outs = llm.generate(pair.prompts, SamplingParams(max_new_tokens=COUNT))
    assert [out.token_ids for out in outs] == pair.answers
    return sum(len(out.token_ids) for out in outs) / sum(out.stats.target_forwards for out in outs)


@pytest.mark.parametrize("rows", [256, 4096])
def test_saved_distributions_are_loaded(tmp_path: Path, rows: int) -> None:
    """Check a reload into a table of the same and of another size."""
    first = saved_recycler(tmp_path / "kept")
    again = Recycler(3, rows=rows, pool_path=str(tmp_path / "kept"))
    for column in (0, 1):
        assert (again.calibration[column] == first.calibration[column]).all()
    for text in ([1, 2], [8, 2], [8, 2, 7], [3]):
        requests = [Request(text, SamplingParams(max_new_tokens=8)) for _ in range(2)]
        assert again.draft(requests[:1], [8], 0.0) == first.draft(requests[1:], [8], 0.0)
    assert int(again.table.clock[0]) == len(entries_of(first.table)[0])


def test_smaller_table_drops_the_oldest_entries(tmp_path: Path) -> None:
    saved_recycler(tmp_path / "kept")
    small = Recycler(3, rows=4, pool_path=str(tmp_path / "kept"))
    assert len(entries_of(small.table)[0]) == 4


@pytest.mark.parametrize("name", DRAFTERS)
def test_a_second_run_has_more_tokens_per_forward(pair: Pair, tmp_path: Path, name: str) -> None:
    path = tmp_path / "kept"
    cold = tokens_per_forward(pair, name, path)
    gc.collect()
    content = path.read_bytes()
    assert tokens_per_forward(pair, name, path) > 1.05 * cold
    gc.collect()
    assert path.read_bytes() != content
    assert not list(tmp_path.glob("*.tmp"))


@pytest.mark.slow
def test_a_process_saves_when_it_ends(tmp_path: Path) -> None:
    path = tmp_path / "kept"
    exit_during_generation(f"LLM(demo.TARGET, 'auto:pool_file={path}')")
    head, arrays = read_table(path)
    assert len(arrays["keys"]) > 0
    assert head["tokenizer"].startswith("sha256:")


def test_drafters_can_share_a_file(pair: Pair, tmp_path: Path) -> None:
    path = tmp_path / "kept"
    made: list[Any] = [create(name, pool_file=str(path), budget=False) for name in DRAFTERS]
    for drafter in made * 2:
        LLM(pair.target, drafter).generate(pair.prompts[:2], SamplingParams(max_new_tokens=8))
        drafter.save_pool()
        read_table(path)
    assert not list(tmp_path.glob("*.tmp"))


def test_damaged_files_are_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "kept"
    saved_recycler(path)
    content, rng = path.read_bytes(), random.Random(1)
    for _ in range(500):
        path.write_bytes(damage_bytes(content, rng))
        with pytest.raises(ConfigError, match=r"kept.*Delete it or name another file"):
            read_table(path)


@pytest.mark.parametrize("name", DRAFTERS)
def test_file_of_another_kind_or_vocabulary_is_refused(
    pair: Pair, tmp_path: Path, name: str
) -> None:
    path = tmp_path / "kept"
    made = saved_recycler(path, vocab_size=50)
    with pytest.raises(ConfigError, match="got a vocabulary of 50 tokens; expected 256"):
        LLM(pair.target, create(name, pool_file=str(path)))
    path.write_bytes(path.read_bytes().replace(b'"version":"3"', b'"version":"9"'))
    with pytest.raises(ConfigError, match="got version '9'; expected '3'"):
        create(name, pool_file=str(path))
    path.write_bytes(pool_bytes(NgramPool(3), 256))
    with pytest.raises(
        ConfigError, match="got 'paceline phrase pool'; expected 'paceline kept distributions'"
    ):
        create(name, pool_file=str(path))
    path.write_bytes(b"")
    with pytest.raises(ConfigError, match="got a file that cannot be read"):
        create(name, pool_file=str(path))
    with pytest.raises(ConfigError, match="does not exist"):
        create(name, pool_file=str(tmp_path / "nowhere" / "kept"))
    assert made.pool_file is not None
    store_distributions(made, {(3,): [(99, 0.5)]})
    made.pool_file.save()
    with pytest.raises(
        ConfigError, match="got ids up to 99; expected ids below its vocabulary of 50"
    ):
        create(name, pool_file=str(path))


def test_file_of_another_tokenizer_is_refused(pair: Pair, tmp_path: Path) -> None:
    path = tmp_path / "kept"
    llm = LLM(pair.target, f"auto:pool_file={path}", tokenizer=byte_tokenizer())
    llm.generate(pair.prompts[:1], SamplingParams(max_new_tokens=4))
    LLM(pair.target, f"auto:pool_file={path}", tokenizer=byte_tokenizer())
    # an unknown tokenizer is compatible with every file
    LLM(pair.target, f"auto:pool_file={path}")
    with pytest.raises(ConfigError, match=r"got ids of the tokenizer sha256:.*; expected sha256:"):
        LLM(pair.target, f"auto:pool_file={path}", tokenizer=piece_tokenizer())


def test_saving_needs_a_known_vocabulary(tmp_path: Path) -> None:
    made: Any = create("auto", pool_file=str(tmp_path / "kept"))
    with pytest.raises(ConfigError, match="Use it in an LLM first"):
        made.save_pool()
    with pytest.raises(
        ConfigError, match=r"token_recycling: got no file .*Choose one with pool_file=PATH"
    ):
        create("token_recycling").save_pool()  # type: ignore[attr-defined]
    assert not list(tmp_path.iterdir())
