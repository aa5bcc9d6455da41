"""Implement Ouroboros, which drafts phrase by phrase (Zhao et al. 2024)."""
