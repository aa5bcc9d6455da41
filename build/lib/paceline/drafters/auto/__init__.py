"""Merge all sources of draft tokens into one draft tree."""
