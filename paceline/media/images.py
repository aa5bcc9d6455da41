"""Load images from Pillow images, paths, bytes and data URLs."""

from __future__ import annotations

import base64
import binascii
import io
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.errors import ConfigError, install_command
from paceline.media.settings import IMAGE_FORMATS, MAX_IMAGE_PIXELS

if TYPE_CHECKING:
    from PIL.Image import Image

_URL = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*)://")
_BYTES = (bytes, bytearray, memoryview)


def load_image(source: Any, where: str, files: bool = True) -> Image:
    """Load an image in RGB, and rotate it as its metadata requires.

    Args:
        source: A Pillow image, a path, the bytes of an image file, or a data URL.
        where: Name of the image in error messages.
        files: Whether `source` may be a path. Default True.
    Raises:
        ConfigError: The source is not a readable image or is too large, or Pillow is missing.
    """
    image_module, operations = _pillow(where)
    if isinstance(source, image_module.Image):
        return _upright(source, where, image_module, operations)
    opened: Any
    if isinstance(source, _BYTES):
        opened = io.BytesIO(bytes(source))
    elif isinstance(source, str) and source[:5].lower() == "data:":
        opened = io.BytesIO(_bytes_of(source, where))
    else:
        opened = _path(source, where, files)
    try:
        with image_module.open(opened, formats=_known_formats(image_module)) as image:
            return _upright(image, where, image_module, operations)
    except (image_module.DecompressionBombError, image_module.DecompressionBombWarning) as error:
        raise _too_large(where, "too many") from error
    except image_module.UnidentifiedImageError as error:
        raise ConfigError(
            f"{where}: got data that are not an image; expected a file of type"
            f" {', '.join(IMAGE_FORMATS)}."
        ) from error
    except (OSError, ValueError, SyntaxError) as error:
        if isinstance(error, ConfigError):
            raise
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(
            f"{where}: the image cannot be read: {reason}. Pass a readable image file."
        ) from error


def _pillow(where: str) -> tuple[Any, Any]:
    try:
        from PIL import Image, ImageOps
    except ImportError as error:
        raise ConfigError(
            f"{where}: images need Pillow, which is missing. Run: {install_command('images')}."
        ) from error
    return Image, ImageOps


def _known_formats(image_module: Any) -> list[str]:
    """Return the image formats that this build of Pillow supports."""
    image_module.init()
    return [name for name in IMAGE_FORMATS if name in image_module.OPEN]


def _path(source: Any, where: str, files: bool) -> Path:
    if not isinstance(source, str | Path):
        raise ConfigError(
            f"{where}: got a {type(source).__name__}; expected a Pillow image, a path, the bytes of"
            " an image file, or a data URL."
        )
    scheme = _URL.match(str(source)) if isinstance(source, str) else None
    if scheme:
        raise ConfigError(
            f"{where}: got a URL with {scheme[1].lower()}://, which is not fetched; expected a data"
            " URL, data:image/png;base64,... Fetch the image first."
        )
    if not files:
        raise ConfigError(
            f"{where}: got no URL; expected a data URL, data:image/png;base64,... The server does"
            " not read files for its clients."
        )
    return Path(source)


def _bytes_of(url: str, where: str) -> bytes:
    """Decode the base64 content of a data URL."""
    head, comma, data = url.partition(",")
    if not comma or not head.lower().endswith(";base64"):
        raise ConfigError(
            f"{where}: got a data URL that begins with {head[:40]!r}; expected"
            " data:image/png;base64,... Encode the image in base64."
        )
    try:
        return base64.b64decode("".join(data.split()), validate=True)
    except (binascii.Error, ValueError) as error:
        raise ConfigError(
            f"{where}: the data URL is not base64 ({error}). Encode the image again."
        ) from error


def _upright(image: Image, where: str, image_module: Any, operations: Any) -> Image:
    width, height = image.size
    if width * height > MAX_IMAGE_PIXELS:
        raise _too_large(where, f"{width} x {height}")
    if not width or not height:
        raise ConfigError(
            f"{where}: got an image of {width} x {height} pixels; expected at least one."
        )
    upright: Image = operations.exif_transpose(image).convert("RGB")
    return upright


def _too_large(where: str, size: str) -> ConfigError:
    return ConfigError(
        f"{where}: got an image of {size} pixels; expected at most {MAX_IMAGE_PIXELS:,} in total."
        " Make it smaller."
    )
