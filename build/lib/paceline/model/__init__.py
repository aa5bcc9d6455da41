"""Run any transformers decoder over pending tokens and draft trees."""
