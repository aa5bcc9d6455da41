"""Compute batch-invariant attention on CPUs with compiled kernels."""
