"""Test the options of the SpecDec++ paper, and the names of its rules."""

from __future__ import annotations

import math

import pytest

from paceline.cli.main import run as run_command
from paceline.errors import ConfigError
from papers import configure, run_paper
from papers.specdec_pp.picks import PAPER_RATIO
from papers.specdec_pp.rules import families
from tests.support.models import byte_tokenizer
from tests.support.shared import Pair

PAPER_PAIR = (0.0234, 0.112)


def test_draft_model_and_head_are_required(pair: Pair) -> None:
    config = configure("specdec_pp", model="tiny")
    with pytest.raises(ConfigError, match="needs a draft model"):
        run_paper(config, target=pair.target, tokenizer=byte_tokenizer(), progress=False)
    with pytest.raises(
        ConfigError,
        match=r"no built-in head fits this draft model.*`paceline head`.*trained for the draft"
        r" model 'demo'",
    ):
        run_paper(
            config, target=pair.target, draft=pair.draft, tokenizer=byte_tokenizer(), progress=False
        )


def test_heads_are_an_option_of_this_paper_only(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(
        ConfigError, match="paper lookahead: --head is an option of paper specdec_pp only"
    ):
        configure("lookahead", head=("folder",))
    for command in (["bench"], ["paper", "lookahead"]):
        with pytest.raises(SystemExit, match="2"):
            run_command([*command, "--recording", "folder"])
        assert "Unknown option: --recording" in capsys.readouterr().err
    assert configure("specdec_pp", head=("a", "b")).command().endswith("--head a --head b")


def test_rule_names_are_unique() -> None:
    methods = [method for rules in families([]).values() for method in rules.values()]
    assert len(set(methods)) == len(methods)
    assert math.isclose(PAPER_RATIO, PAPER_PAIR[1] / PAPER_PAIR[0])
