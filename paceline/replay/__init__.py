"""Recorded answers run through a drafter without a model: `replay(drafter, traces, max_nodes)`."""

from paceline.replay.run import ReplayResult, Trace, replay

__all__ = ["ReplayResult", "Trace", "replay"]
