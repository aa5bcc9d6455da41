"""Prompts with images, videos and audio."""
