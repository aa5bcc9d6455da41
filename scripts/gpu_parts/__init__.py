"""Measure paceline on one GPU: the parts of `scripts/gpu_day.py`."""
