"""Run decode steps for the requests of many callers."""
