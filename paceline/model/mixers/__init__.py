"""Run the recurrent mixers of a model over pending tokens and draft trees."""
