"""Compute on CPUs with compiled kernels."""
