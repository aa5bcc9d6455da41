"""Multiply a few rows by weights on CPUs with batch-invariant kernels."""
