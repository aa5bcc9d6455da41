"""Provide components that several drafters share."""
