"""Implement `auto`, which merges all sources of draft tokens into one draft tree."""
