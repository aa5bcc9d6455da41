"""Which drafters a request may name: none that opens a file or imports a module, but those the
server allows.
"""

from __future__ import annotations

from typing import Any

import pytest

from paceline.drafters import create
from paceline.errors import ConfigError
from paceline.serve.requests import Speculation
from paceline.serve.speculation import Speculations
from paceline.util.config import parse_spec

OWN = Speculations("auto", ["sssd:datastore=/a/store,max_nodes=8"])


def asked(**fields: Any) -> Speculation:
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
        (asked(max_nodes=4), (None, 4)),
        (asked(drafter="auto", max_nodes=4), (None, 4)),
        (asked(drafter="pia", query_ngram=1, max_nodes=3), ("pia:query_ngram=1", 3)),
        (asked(drafter="pia:max_nodes=6"), ("pia:max_nodes=6", None)),
        ("draft_model:stop_rule=confidence", ("draft_model:stop_rule=confidence", None)),
        ("sssd", ("sssd:datastore=/a/store,max_nodes=8", None)),
        ("sssd: max_nodes=8, datastore=/a/store", ("sssd:datastore=/a/store,max_nodes=8", None)),
        (
            asked(drafter="sssd:datastore=/a/store,max_nodes=8"),
            ("sssd:datastore=/a/store,max_nodes=8", None),
        ),
    ],
)
def test_what_is_taken(given: Any, spec: Any) -> None:
    assert OWN.spec(given) == spec


@pytest.mark.parametrize(
    "given",
    [
        "os:system",
        "tests.support.shared:Watch",
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
        asked(drafter="pia", query_ngram="6'"),
        asked(drafter="pia", **{"no des": 6}),
        asked(drafter="pia", query_ngram=None),
        asked(drafter="pia:max_nodes=6", query_ngram=3),
        asked(query_ngram=6),
        asked(drafter="sssd", datastore="demo"),
    ],
)
def test_what_is_refused(given: Any) -> None:
    with pytest.raises(ConfigError):
        OWN.spec(given)


@pytest.mark.parametrize(
    "value", ["paper,datastore=/etc", "paper datastore=/etc", "paper,datastore=/a/store"]
)
def test_nothing_is_smuggled_in_a_value(value: str) -> None:
    """It is one value, which the drafter refuses."""
    spec, _ = OWN.spec(asked(drafter="sssd", fusion=value))
    assert spec is not None
    assert parse_spec(spec) == ("sssd", {"fusion": value})
    with pytest.raises(ConfigError, match="fusion"):
        create(spec)
