"""Decode token ids to text incrementally, and find stop strings in it."""
