"""Measure a drafter on recorded answers, without running a model.

result = replay(drafter, traces, max_nodes)
"""

from paceline.replay.run import ReplayResult, Trace, replay

__all__ = ["ReplayResult", "Trace", "replay"]
