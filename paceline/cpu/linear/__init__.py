"""Multiply a few rows with weights on CPUs, batch-invariantly."""
