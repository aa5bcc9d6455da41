"""Test which drafters a request may name.

A drafter that opens a file or imports a module is refused unless the server allows it.
"""

from __future__ import annotations

import re
from typing import Any

import pytest

from paceline import LLM, demo
from paceline.drafters import create
from paceline.errors import ConfigError
from paceline.serve import Settings
from paceline.serve.requests import CompletionRequest, Speculation
from paceline.serve.serving import Serving
from paceline.serve.speculation import Speculations
from paceline.util.config import parse_spec

ALLOWED = Speculations("auto", ["sssd:datastore=/a/store,max_nodes=8"])


def speculation(**fields: Any) -> Speculation:
    return Speculation(**fields)


@pytest.mark.parametrize(
    ("given", "spec"),
    [
        (None, (None, None)),
        (True, (None, None)),
        (False, ("none", None)),
        ("auto", (None, None)),
        ("none", ("none", None)),
        ("pia:max_nodes=6", ("pia:max_nodes=6", None)),
        ("auto:draft_head=false", ("auto:draft_head=false", None)),
        (speculation(max_nodes=4), (None, 4)),
        (speculation(drafter="auto", max_nodes=4), (None, 4)),
        (speculation(drafter="pia", query_ngram=1, max_nodes=3), ("pia:query_ngram=1", 3)),
        (speculation(drafter="pia:max_nodes=6"), ("pia:max_nodes=6", None)),
        ("draft_model:stop_rule=confidence", ("draft_model:stop_rule=confidence", None)),
        ("sssd", ("sssd:datastore=/a/store,max_nodes=8", None)),
        ("sssd: max_nodes=8, datastore=/a/store", ("sssd:datastore=/a/store,max_nodes=8", None)),
        (
            speculation(drafter="sssd:datastore=/a/store,max_nodes=8"),
            ("sssd:datastore=/a/store,max_nodes=8", None),
        ),
    ],
)
def test_safe_drafters_are_accepted(given: Any, spec: Any) -> None:
    assert ALLOWED.spec(given) == spec


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("nope", "there is no drafter 'nope'"),
        ("sssd:datastor=x", "sssd has no option 'datastor'. Did you mean 'datastore'?"),
        ("pia:max_nodes=many", "pia: max_nodes: got 'many'; expected a whole number."),
        ("draft_model", "drafter 'draft_model' needs a draft model."),
    ],
)
def test_invalid_allowed_specs_are_refused_at_the_start(spec: str, expected: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(expected)):
        Speculations("auto", ["sssd", spec], has_draft_model=False)


@pytest.mark.parametrize(
    "given",
    [
        "os:system",
        "tests.support.drafters:NotingDrafter",
        "nothing",
        "",
        ":",
        "sssd:datastore=/etc",
        "sssd:datastore=/a/store",
        "ouroboros:pool_file=x",
        "specdec_pp:head=x",
        "token_recycling:tree=x",
        "auto:pool_file=x",
        "auto:draft_head=x",
        speculation(drafter="pia", query_ngram="6'"),
        speculation(drafter="pia", **{"no des": 6}),
        speculation(drafter="pia", query_ngram=None),
        speculation(drafter="pia:max_nodes=6", query_ngram=3),
        speculation(query_ngram=6),
        speculation(drafter="sssd", datastore="demo"),
    ],
)
def test_unsafe_drafters_are_refused(given: Any) -> None:
    with pytest.raises(ConfigError):
        ALLOWED.spec(given)


def test_a_missing_draft_model_is_an_option_of_the_server() -> None:
    llm = LLM(demo.TARGET, "none", dtype="float32")
    sampler = Serving(llm, Settings()).sampler
    fields: dict[str, Any] = {"prompt": "x", "speculation": "draft_model:max_draft_tokens=3"}
    request = CompletionRequest(**fields)
    with pytest.raises(ConfigError, match=r"Start the server with --draft-model\."):
        sampler.params(request, 4, None)


@pytest.mark.parametrize(
    "value", ["paper,datastore=/etc", "paper datastore=/etc", "paper,datastore=/a/store"]
)
def test_a_value_cannot_contain_other_options(value: str) -> None:
    """The text is one value, which the drafter refuses."""
    spec, _ = ALLOWED.spec(speculation(drafter="sssd", fusion=value))
    assert spec is not None
    assert parse_spec(spec) == ("sssd", {"fusion": value})
    with pytest.raises(ConfigError, match="fusion"):
        create(spec)
