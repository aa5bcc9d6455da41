"""Test the Ouroboros paper: matches, orders of prompts, and a run on tiny models."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from paceline import DraftTree, Outcome
from paceline.bench import Prompt
from paceline.core.request import Request
from paceline.core.sampling_params import SamplingParams
from paceline.errors import ConfigError
from papers import (
    configure,
    draw_paper,
    paper_markdown,
    read_paper_json,
    run_paper,
    write_paper_json,
)
from papers.orders import by_task, in_turn, scaled, shuffled
from papers.ouroboros import paper_settings
from papers.ouroboros.matches import own_tokens
from papers.ouroboros.result import LONGEST, Matches, OuroborosResult
from papers.report import tables as tables_of
from tests.support.models import byte_tokenizer
from tests.support.shared import Pair, interrupt

PROMPTS = [Prompt(f"{task}{number}", task, "text") for number in range(3) for task in "ab"]


def test_matches_by_hand() -> None:
    """Two tokens are accepted, 7 is wrong, and of the tokens after it 8 9 and 3 match.

    The draft is 5 6 7 8 9 9 3, and the target predicts 5 6 1 8 9 2 3 (4).
    """
    tree = DraftTree.chain([5, 6, 7, 8, 9, 9, 3])
    outcome = Outcome(
        Request([1, 2], SamplingParams()), tree, [0, 1], [5, 6, 1], [5, 6, 1, 8, 9, 2, 3, 4]
    )
    draft = own_tokens(outcome)
    assert draft == (True, True, False, True, True, False, True)
    matches = Matches.of("code", [draft])
    assert (
        matches.verifications,
        matches.prefix,
        matches.equal,
        matches.rejected,
        matches.discarded,
    ) == (1, 2, 5, 1, 4)
    assert matches.substrings == (3, 1, *[0] * (LONGEST - 2))
    assert matches.per_verification() == (2, 5)
    chat = Matches.of("chat", [(True,) * 7, (False,) + (True,) * 6])
    assert (chat.verifications, chat.prefix, chat.equal, chat.rejected, chat.discarded) == (
        2,
        7,
        13,
        1,
        6,
    )
    assert chat.substrings[:6] == (6, 5, 4, 3, 2, 1)
    both = Matches.total([matches, chat])
    assert both.per_verification() == (3, 6)
    assert both.per_rejection()[:3] == [4.5, 3, 2]


def test_tasks_take_turns() -> None:
    tasks = by_task(PROMPTS, 3)
    assert [[prompt.id for prompt in task] for task in tasks] == [
        ["a0", "a1", "a2"],
        ["b0", "b1", "b2"],
    ]
    assert [prompt.id for prompt in in_turn(tasks, 3)] == ["a0", "a1", "a2", "b0", "b1", "b2"]
    assert [prompt.id for prompt in in_turn(tasks, 2)] == ["a0", "a1", "b0", "b1", "a2", "b2"]
    assert in_turn(tasks, 1) == PROMPTS
    assert in_turn([tasks[0], tasks[1][:1]], 1) == [PROMPTS[index] for index in (0, 1, 2, 4)]
    assert by_task(PROMPTS, 1) == [[PROMPTS[0]], [PROMPTS[1]]]
    assert shuffled(tasks, 0) == shuffled(tasks, 0) != shuffled(tasks, 1)
    assert sorted(shuffled(tasks, 0), key=PROMPTS.index) == PROMPTS
    assert [scaled(number, 20) for number in (20, 10, 4, 1)] == [20, 10, 4, 1]
    assert [scaled(number, 5) for number in (20, 10, 4, 1)] == [5, 3, 1, 1]


def measure(pair: Pair, tmp_path: Path, **options: Any) -> OuroborosResult:
    prompts = tmp_path / "prompts.jsonl"
    lines = [{"id": f"{i}", "category": "xy"[i % 2], "turns": [f"{i} abcab" * 3]} for i in range(6)]
    prompts.write_text("".join(json.dumps(line) + "\n" for line in lines))
    values: dict[str, Any] = {"max_new_tokens": 6, "limit": 2, "warmup": 0, "threads": 1, **options}
    config = configure(
        "ouroboros", model="tiny", draft_model="noisy", prompts=(str(prompts),), **values
    )
    result = run_paper(
        config, target=pair.target, draft=pair.draft, tokenizer=byte_tokenizer(), progress=False
    )
    assert isinstance(result, OuroborosResult)
    return result


def test_paper_is_measured_and_reported(pair: Pair, tmp_path: Path) -> None:
    result = measure(pair, tmp_path)
    assert result.complete
    assert {row.method for row in result.methods.figures} == {
        "transformers",
        *paper_settings.METHODS,
    }
    assert all(row.equal == row.compared for row in result.methods.figures)
    assert result.methods.method("none").draft_forwards == 0  # type: ignore[union-attr]
    assert (result.methods.method(paper_settings.COLD).draft_forwards or 0) > 0  # type: ignore[union-attr]
    assert result.matches is not None
    assert [task.task for task in result.matches.tasks] == ["x", "y"]
    assert result.matches.prompts == 4
    assert (result.size, [order.consecutive for order in result.orders]) == (2, [None, 2, 1])
    path = tmp_path / "out" / "paper.json"
    write_paper_json(result, path)
    assert read_paper_json(path) == result
    sections = {row["title"][:7]: row for row in json.loads(path.read_text())["sections"]}
    column = sections["Table 1"]["columns"].index("paper's MBPP")
    assert [row[column] for row in sections["Table 1"]["rows"]] == [12.7, 18.9]
    assert sections["Table 3"]["rows"][6][-2] == 58.18
    assert len(sections["Table 4"]["rows"]) == 7
    text = paper_markdown(result)
    for title in (
        "Table 1:",
        "Figure 3:",
        "Table 2, figure 4:",
        "Table 3:",
        "Figure 5:",
        "Table 4:",
    ):
        assert title in text
    assert "| CN = 10 (here 1), warm |" in text
    assert all(len(row) == len(table.columns) for table in tables_of(result) for row in table.rows)
    draw_paper(result, tmp_path / "paper.png")
    assert (tmp_path / "paper.png").read_bytes().startswith(b"\x89PNG")


def test_time_limit_reduces_the_prompts(pair: Pair, tmp_path: Path) -> None:
    result = measure(pair, tmp_path, max_new_tokens=2, max_seconds=1e-6)
    assert result.complete
    assert {row.answers for row in result.methods.figures} == {1}
    assert result.matches is not None
    assert result.matches.prompts == 1
    assert (result.size, len(result.orders)) == (1, 2)


# answers for tables 2 and 3; then 4 for table 1, and 8 per order of table 4
TIMED = 2 * len(paper_settings.METHODS)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("call", "counted", "orders"), [(3, None, 0), (TIMED + 3, 2, 0), (TIMED + 4 + 8 + 3, 4, 1)]
)
def test_interrupted_paper_keeps_its_results(
    pair: Pair,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    call: int,
    counted: int | None,
    orders: int,
) -> None:
    interrupt(monkeypatch, call)
    result = measure(pair, tmp_path, max_new_tokens=2)
    assert not result.complete
    assert (result.matches and result.matches.prompts, len(result.orders)) == (counted, orders)
    assert "PARTIAL" in paper_markdown(result)
    write_paper_json(result, tmp_path / "paper.json")
    assert read_paper_json(tmp_path / "paper.json") == result
    draw_paper(result, tmp_path / "paper.png")


def test_draft_model_is_required(pair: Pair) -> None:
    with pytest.raises(ConfigError, match="needs a draft model"):
        run_paper(
            configure("ouroboros", model="tiny"),
            target=pair.target,
            tokenizer=byte_tokenizer(),
            progress=False,
        )


def test_drafter_names_are_unique() -> None:
    assert len(set(paper_settings.METHODS)) == len(paper_settings.METHODS)
    assert paper_settings.figure_5_spec(3, published=True) == paper_settings.spec_of()
    assert dataclasses.asdict(paper_settings.TABLE_3[3])["paper"] == pytest.approx(
        (55.92, 1.1206), abs=1e-3
    )
