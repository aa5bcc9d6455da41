"""Progress bars are for terminals alone."""

from __future__ import annotations

import pytest

from paceline.report.progress import progress_bar


@pytest.mark.parametrize(("shown", "terminal"), [(True, False), (False, True), (True, True)])
def test_into_a_pipe_nothing_is_written(
    shown: bool, terminal: bool, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    if terminal:
        monkeypatch.setenv("FORCE_COLOR", "1")
        monkeypatch.setenv("TERM", "xterm")
    with progress_bar(shown=shown) as bar:
        assert list(bar.track([1, 2], description="counting")) == [1, 2]
    told = capfd.readouterr()
    assert told.out == ""
    assert ("counting" in told.err) == (shown and terminal)
    assert terminal or told.err == ""
