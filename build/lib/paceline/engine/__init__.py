"""Run decode steps for requests from many callers."""
