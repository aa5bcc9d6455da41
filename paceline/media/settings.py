"""Define which image files are read."""

from __future__ import annotations

# Largest image that is decoded, in pixels. A small file can hold a huge image; this one takes 192
# MB. Cameras of phones make up to 50 million.
MAX_IMAGE_PIXELS = 64_000_000

# Image formats that are read. Pillow knows more, but some of them run other programs.
IMAGE_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "MPO", "AVIF")
