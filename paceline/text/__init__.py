"""Decode token ids to text incrementally, encode prompts, and detect stop strings."""
