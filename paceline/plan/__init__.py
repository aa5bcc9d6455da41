"""Estimate the speed-up of speculative decoding from a roofline model."""
