"""Implement Ouroboros (Zhao et al. 2024)."""
