"""Check when stored machine code counts as outdated."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.util import code_cache
from paceline.util.code_cache import CodeCache, _settings_digest


def test_changed_settings_outdate_the_code_of_their_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels, others = tmp_path / "cpu" / "linear", tmp_path / "serve"
    kernels.mkdir(parents=True)
    others.mkdir()
    monkeypatch.setattr(code_cache, "_PACKAGE", tmp_path)

    def digests() -> tuple[str, str]:
        _settings_digest.cache_clear()
        return _settings_digest(kernels), _settings_digest(others)

    before = digests()
    (tmp_path / "cpu" / "settings.py").write_text("BLOCK = 64\n")
    after = digests()
    assert after[0] != before[0]
    assert after[1] == before[1]
    (tmp_path / "cpu" / "settings.py").write_text("BLOCK = 32\n")
    assert digests()[0] not in (before[0], after[0])
    _settings_digest.cache_clear()


def test_the_stamp_of_stored_code_contains_the_settings() -> None:
    stored = CodeCache(test_changed_settings_outdate_the_code_of_their_package)
    assert stored._cache_file._source_stamp[1] == _settings_digest(Path(__file__).parent)
