"""Encode prompts with images, videos and audio."""
