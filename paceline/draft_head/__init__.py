"""Predict draft trees from the target's hidden states with a small network."""
