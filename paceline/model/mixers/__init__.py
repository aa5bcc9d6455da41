"""Run a model's recurrent mixers over pending tokens and draft trees."""
