"""Test that progress bars are shown on terminals only."""

from __future__ import annotations

import pytest

from paceline.report.progress import progress_bar


@pytest.mark.parametrize(("shown", "terminal"), [(True, False), (False, True), (True, True)])
def test_nothing_is_written_to_a_pipe(
    shown: bool, terminal: bool, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    if terminal:
        monkeypatch.setenv("FORCE_COLOR", "1")
        monkeypatch.setenv("TERM", "xterm")
    with progress_bar(shown=shown) as bar:
        assert list(bar.track([1, 2], description="counting")) == [1, 2]
    captured = capfd.readouterr()
    assert captured.out == ""
    assert ("counting" in captured.err) == (shown and terminal)
    assert terminal or captured.err == ""
