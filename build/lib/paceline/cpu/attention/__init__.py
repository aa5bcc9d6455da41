"""Compute batch-invariant attention on CPUs."""
