"""Set the formats and the maximum size of accepted images."""

from __future__ import annotations

# Maximum size of a decoded image, in pixels. A small file can contain a huge image. An image of
# this size takes 192 MB; phone cameras produce up to 50 million pixels.
MAX_IMAGE_PIXELS = 64_000_000

# Accepted image formats. Pillow supports more, but some of them run other programs.
IMAGE_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "MPO", "AVIF")
