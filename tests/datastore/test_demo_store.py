"""Test the built-in datastore: intact, read only, and useful to its target."""

from __future__ import annotations

import fnmatch
import json
import tomllib
from pathlib import Path

import pytest

from paceline import LLM, SamplingParams, datastore, demo
from paceline.cli.options import with_store
from paceline.drafters import create
from paceline.replay import replay

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    llm = LLM(demo.TARGET, "none")
    lines = demo.PROMPTS.read_text(encoding="utf-8").splitlines()[::4]
    return [
        llm.chat_prompt([{"role": "user", "content": json.loads(line)["turns"][0]}])
        for line in lines
    ]


def state() -> dict[str, tuple[int, int]]:
    """Return the sizes and modification times of the datastore's files."""
    return {
        path.name: (path.stat().st_size, path.stat().st_mtime_ns)
        for path in sorted(demo.STORE.iterdir())
    }


def test_datastore_matches_its_card() -> None:
    assert datastore.verify("demo") == []
    found, card = datastore.info("demo"), json.loads(demo.STORE.with_suffix(".json").read_text())
    assert found.path == demo.STORE
    assert (found.tokens, found.documents, found.size, found.tokenizer) == tuple(
        card[key] for key in ("tokens", "documents", "bytes", "tokenizer")
    )
    assert sum(card["documents_of_each_kind"].values()) == found.documents
    assert found.size < 4_000_000
    assert (ROOT / card["script"]).is_file()


def test_datastore_fits_the_tokenizer_and_is_not_written(prompts: list[list[int]]) -> None:
    before = state()
    plain = LLM(demo.TARGET, "none", dtype="float32").generate(
        prompts, SamplingParams(max_new_tokens=32)
    )
    for name in ("sssd", "rest"):
        # the tokenizer is checked here
        llm = LLM(demo.TARGET, f"{name}:datastore=demo", dtype="float32")
        answers = llm.generate(prompts, SamplingParams(max_new_tokens=32))
        assert [answer.token_ids for answer in answers] == [answer.token_ids for answer in plain]
    assert state() == before
    assert [name.partition("-")[0].partition(".")[0] for name in before] == ["manifest", "shard"]


def test_datastore_raises_tokens_per_step(prompts: list[list[int]]) -> None:
    answers = LLM(demo.TARGET, "none", dtype="float32").generate(
        prompts, SamplingParams(max_new_tokens=64)
    )
    traces = [(prompt, answer.token_ids) for prompt, answer in zip(prompts, answers, strict=True)]
    alone, helped = (
        replay(create(spec), traces).tokens_per_step for spec in ("sssd", "sssd:datastore=demo")
    )
    assert helped > 1.2 * alone


def test_name_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that "demo" is the built-in datastore and "./demo" a folder."""
    monkeypatch.chdir(tmp_path)
    datastore.build("./demo", [[1, 2]], 5)
    assert datastore.info(Path("demo")).tokens == datastore.info("./demo").tokens == 2
    assert datastore.info("demo").path == demo.STORE
    assert with_store("sssd", demo.NAME) == "sssd:datastore=demo"
    assert with_store("rest:max_nodes=5", demo.NAME) == "rest:max_nodes=5,datastore=demo"
    assert with_store("sssd:datastore=other", demo.NAME) == "sssd:datastore=other"
    assert with_store("none", demo.NAME) == with_store("none", None) == "none"


def test_datastore_is_packaged() -> None:
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"][
        "package-data"
    ]["paceline"]
    for path in (*demo.STORE.iterdir(), demo.STORE.with_suffix(".json")):
        name = path.relative_to(ROOT / "paceline").as_posix()
        assert any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns), name
