"""Test the lookahead paper: the scaling law, its fit, and a run on tiny models."""

from __future__ import annotations

import dataclasses
import io
import itertools
import json
import random
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from paceline.errors import ConfigError
from papers import (
    PaperResult,
    configure,
    draw_paper,
    paper_markdown,
    print_paper,
    read_paper_json,
    run_paper,
    write_paper_json,
)
from papers.lookahead.options import NGRAMS, WINDOWS, LookaheadConfig
from papers.lookahead.paper_settings import (
    DRAFT,
    PAPER_LAW,
    spec_of,
)
from papers.lookahead.result import LookaheadResult
from papers.lookahead.run import spec_nodes
from papers.lookahead.scaling_law import (
    CompressionPoint,
    ScalingLaw,
    expected_tokens,
    fit,
)
from papers.lookahead.tables import points
from tests.support.cli import usage_error
from tests.support.models import byte_tokenizer
from tests.support.shared import Pair, interrupt


def test_one_guess_equals_speculative_decoding() -> None:
    """Check that equation 5 with b = 1 is equation 4."""
    for alpha, length in ((0.3, 1), (0.425, 4), (0.9, 7)):
        assert expected_tokens(alpha, length, 1) == pytest.approx(
            (1 - alpha ** (length + 1)) / (1 - alpha)
        )
    assert expected_tokens(0.5, 2, 1) == pytest.approx(1.75)  # 1 + 1/2 + 1/4
    assert expected_tokens(0.5, 2, 2) == pytest.approx(3 - 0.25 - 0.5625)  # 3 - (1/2)^2 - (3/4)^2


def test_limits_of_the_law() -> None:
    assert expected_tokens(0.0, 4, 10) == 1.0
    assert expected_tokens(1.0, 4, 10) == 5.0
    assert expected_tokens(0.4, 4, 1e9) == pytest.approx(
        5.0
    )  # with every possible draft, one is right
    assert ScalingLaw(0.4, 1.0).compression(5, 3) == pytest.approx(expected_tokens(0.4, 4, 3))
    assert ScalingLaw(0.4, 1e12).compression(5, 3) == pytest.approx(1.0)
    assert PAPER_LAW.compression(5, 15) == pytest.approx(
        1.96, abs=0.05
    )  # the paper measured 1.96, table 3
    with pytest.raises(ConfigError, match="f: got 0"):
        ScalingLaw(0.4, 0.5)


@pytest.mark.parametrize("law", [PAPER_LAW, ScalingLaw(0.8, 1.3), ScalingLaw(0.12, 9.0)])
def test_fit_recovers_the_law(law: ScalingLaw) -> None:
    exact = [
        CompressionPoint(ngram, window, law.compression(ngram, window))
        for ngram in NGRAMS
        for window in WINDOWS
    ]
    law_fit = fit(exact)
    assert law_fit is not None
    assert [law_fit.alpha, law_fit.f] == pytest.approx([law.alpha, law.f], rel=1e-5)
    assert law_fit.residual(exact) < 1e-8
    rng = random.Random(0)
    noisy = [
        dataclasses.replace(point, compression=point.compression + rng.gauss(0, 0.02))
        for point in exact
    ]
    law_fit = fit(noisy)
    assert law_fit is not None
    assert law_fit.residual(noisy) == pytest.approx(0.02, rel=0.5)
    assert law_fit.residual(noisy) <= law.residual(noisy), "least squares"


def test_uninformative_points_are_not_fitted() -> None:
    assert fit([]) is None
    assert fit([CompressionPoint(5, 4, 1.6)]) is None
    assert fit([CompressionPoint(5, 4, 1.0), CompressionPoint(5, 8, 1.0)]) is None
    # more than the law allows
    steep = fit([CompressionPoint(3, 1, 1.5), CompressionPoint(3, 30, 6.0)])
    assert steep is not None
    assert steep.f == 1.0


def test_no_tree_of_the_sweep_is_cut() -> None:
    assert spec_nodes(spec_of(9, 30, 30)) == 8 * 60 - 1
    assert spec_nodes("jacobi:block=5") == 0


def test_config_is_checked() -> None:
    with pytest.raises(ConfigError, match=r"got paper 'lookahed'.*'lookahead'"):
        configure("lookahed")
    with pytest.raises(ConfigError, match="threads: got 0"):
        configure("lookahead", threads=0)
    config = configure(
        "lookahead",
        model="some/model",
        prompts=("a b.jsonl", "c.jsonl"),
        max_new_tokens=32,
        ignore_eos=True,
    )
    assert config.command() == (
        "paceline paper lookahead some/model --prompts 'a b.jsonl' --prompts c.jsonl"
        " --max-new-tokens 32 --ignore-eos"
    )


def test_figure_has_the_chosen_sizes_and_windows() -> None:
    config = configure("lookahead", ngrams=(3, 5), windows=(1, 15))
    assert isinstance(config, LookaheadConfig)
    assert config.settings == [(3, 1), (3, 15), (5, 1), (5, 15)]
    for wrong in ({"ngrams": (1,)}, {"windows": (4, 0)}):
        with pytest.raises(ConfigError, match=f"{next(iter(wrong))}: got "):
            configure("lookahead", **wrong)


def test_rounded_answers_are_compared_with_plain_decoding() -> None:
    assert configure("lookahead", dtype="float32").run_of(["none"]).baselines == ("transformers",)
    assert configure("lookahead", dtype="bfloat16").run_of(["none"]).baselines == ()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["lokahead"], "Did you mean lookahead?"),
        (["lookahead", "--drafter", "none"], "Unknown option: --drafter"),
        (["lookahead", "--batch", "2"], "Unknown option: --batch"),
        (["lookahead", "--png", "no-such-folder/a.png"], "no-such-folder"),
    ],
)
def test_invalid_arguments_get_one_line(
    words: list[str],
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert expected in usage_error(["paper", *words], monkeypatch, capsys)


def measure(pair: Pair, tmp_path: Path, draft: bool = True, **options: Any) -> LookaheadResult:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(
        "".join(
            json.dumps({"id": f"{i}", "category": "c", "turns": [f"{i} abcab" * 4]}) + "\n"
            for i in range(4)
        )
    )
    values: dict[str, Any] = {
        "max_new_tokens": 12,
        "limit": 1,
        "warmup": 0,
        "threads": 1,
        **options,
    }
    config = configure(
        "lookahead",
        model="tiny",
        draft_model="noisy" if draft else None,
        prompts=(str(prompts),),
        **values,
    )
    loaded = {
        "target": pair.target,
        "draft": pair.draft if draft else None,
        "tokenizer": byte_tokenizer(),
        "progress": False,
    }
    result = run_paper(config, **loaded)
    assert isinstance(result, LookaheadResult)
    return result


def to_text(result: PaperResult) -> str:
    console = Console(file=io.StringIO(), width=150)
    print_paper(result, console)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_paper_is_measured_and_reported(pair: Pair, tmp_path: Path) -> None:
    result = measure(pair, tmp_path)
    assert result.complete
    assert all(row.equal == row.compared for part in result.parts for row in part.figures)
    for published in (True, False):
        assert len(points(result, published)) == len(NGRAMS) * len(WINDOWS)
        assert all(point.compression >= 1 for point in points(result, published))
    path = tmp_path / "out" / "paper.json"
    write_paper_json(result, path)
    assert [file.name for file in path.parent.iterdir()] == ["paper.json"], (
        "no temporary file is left"
    )
    assert read_paper_json(path) == result
    figure_4, _, table_3, _ = json.loads(path.read_text())["sections"]
    assert "alpha = 0.425 and f = 3.106" in figure_4["notes"][2]
    assert [len(row) for row in figure_4["rows"]] == [1 + len(WINDOWS)] * len(NGRAMS)
    assert None not in itertools.chain(*figure_4["rows"])
    rows = [dict(zip(table_3["columns"], row, strict=True)) for row in table_3["rows"]]
    assert rows[0]["speed-up"] == rows[0]["S"] == 1.0
    assert (rows[8]["paper's speed-up"], rows[8]["paper's S"]) == (1.88, 2.05)
    for text in (to_text(result), paper_markdown(result)):
        assert "8 (5, 15, 15)" in text
        assert "is not part of paceline" in text
        assert "draft model's row is empty" not in text
    assert "| 9 (5, 15, 15) + prompt |" in paper_markdown(result)
    assert result.config.command() in paper_markdown(result)
    draw_paper(result, tmp_path / "paper.png")
    assert (tmp_path / "paper.png").read_bytes().startswith(b"\x89PNG")


def test_draft_model_row_is_empty_without_one(pair: Pair, tmp_path: Path) -> None:
    result = measure(pair, tmp_path, draft=False, limit=4, max_new_tokens=4, max_seconds=1e-6)
    assert result.tables is not None
    assert result.tables.method(DRAFT) is None
    assert "draft model's row is empty" in to_text(result)
    assert [row.answers for part in result.parts for row in part.figures] == [1] * sum(
        len(p.figures) for p in result.parts
    )


def test_interrupted_paper_keeps_its_results(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt(monkeypatch, 20)  # the second prompt of the tables
    result = measure(pair, tmp_path, limit=3, max_new_tokens=4)
    assert not result.complete
    assert result.figure is None
    assert points(result, published=False) == []
    assert "PARTIAL" in to_text(result)
    assert "No fit" in to_text(result)
    write_paper_json(result, tmp_path / "paper.json")
    assert read_paper_json(tmp_path / "paper.json") == result
    draw_paper(result, tmp_path / "paper.png")


def test_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"schema": 1, "kind": "paceline bench"}')
    with pytest.raises(ConfigError, match="kind 'paceline bench', schema 1"):
        read_paper_json(tmp_path / "a.json")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_paper_json(tmp_path / "b.json")
