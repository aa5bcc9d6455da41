"""Implement REST (He et al. 2023)."""
