"""Multiply a few rows by weight matrices on CPUs with batch-invariant kernels."""
