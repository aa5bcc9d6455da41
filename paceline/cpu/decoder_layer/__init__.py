"""Compute the decoder layers of a model in compiled calls."""
