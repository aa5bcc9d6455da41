"""Predict the next tokens from hidden states of the target."""
