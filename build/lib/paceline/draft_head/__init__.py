"""Predict the next tokens from the target's hidden states."""
