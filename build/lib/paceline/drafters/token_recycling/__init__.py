"""Implement Token Recycling (Luo et al. 2024)."""
