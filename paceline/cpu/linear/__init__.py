"""Multiply a few rows by weights on CPUs, batch-invariantly."""
