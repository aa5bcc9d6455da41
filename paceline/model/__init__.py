"""Run transformers decoder models over pending tokens and draft trees."""
