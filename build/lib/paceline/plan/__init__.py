"""Estimate the gain of speculative decoding from a model's roofline."""
