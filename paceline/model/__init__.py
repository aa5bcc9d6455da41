"""Run decoder models from transformers over pending tokens and draft trees."""
