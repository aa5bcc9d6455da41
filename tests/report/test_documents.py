"""Test that documents are read back, and that damaged or foreign ones are refused."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from paceline.errors import ConfigError
from paceline.report.documents import DocumentKind, kind_of, read_document, write_document


@dataclass(frozen=True)
class Inner:
    name: str
    share: float
    counts: tuple[int, ...]
    known: bool | None = None


@dataclass(frozen=True)
class Content:
    inner: tuple[Inner, ...]
    sets: dict[str, Inner]
    pair: tuple[float, float] | None = None


KIND = DocumentKind("a kind", 3, Content)
INNER = Inner("x", 0.5, (1, 2))


def test_documents_are_read_back(tmp_path: Path) -> None:
    content = Content((INNER, Inner("y", 1, (), True)), {"a": INNER}, (0.25, 2.0))
    path = tmp_path / "folder" / "document.json"
    write_document(path, KIND, content, derived={"figures": content.inner})
    assert read_document(path, DocumentKind("another", 1, Content), KIND) == content
    assert kind_of(path) == "a kind"
    written = json.loads(path.read_text())
    assert list(written)[:3] == ["schema", "kind", "derived"]
    assert written["derived"]["figures"][0] == {
        "name": "x",
        "share": 0.5,
        "counts": [1, 2],
        "known": None,
    }
    assert [file.name for file in path.parent.iterdir()] == ["document.json"], (
        "no temporary file is left"
    )


def test_the_error_names_other_kinds_of_documents(tmp_path: Path) -> None:
    path = tmp_path / "document.json"
    write_document(path, KIND, Content((), {}))
    with pytest.raises(
        ConfigError,
        match="got kind 'a kind', schema 3; expected kind 'a kind', schema 4 or kind 'b', schema 3",
    ):
        read_document(path, DocumentKind("a kind", 4, Content), DocumentKind("b", 3, Content))
    path.write_text("[1]")
    with pytest.raises(ConfigError, match="got kind None, schema None"):
        read_document(path, KIND)
    path.write_text('{"schema": 3,')
    with pytest.raises(ConfigError, match=r"the result .* cannot be read"):
        read_document(path, KIND)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": 5}, r"got 5; expected str @ .inner\[0\].name"),
        ({"share": "0.5"}, r"got '0.5'; expected float @ .inner\[0\].share"),
        ({"share": True}, "got True; expected float"),
        ({"counts": [1, "2"]}, r"got '2'; expected int @ .inner\[0\].counts\[1\]"),
        ({"counts": None}, r"inner\[0\].counts"),
        ({"known": 1}, "got 1; expected bool"),
        ({"name": ...}, r"got nothing; expected this field @ .inner\[0\].name"),
    ],
)
def test_the_error_names_a_damaged_field(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    path = tmp_path / "document.json"
    write_document(path, KIND, Content((INNER,), {"a": INNER}))
    document = json.loads(path.read_text())
    document["inner"][0] |= change
    document["inner"][0] = {
        name: value for name, value in document["inner"][0].items() if value is not ...
    }
    path.write_text(json.dumps(document))
    with pytest.raises(ConfigError, match=message):
        read_document(path, KIND)
