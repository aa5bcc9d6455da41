"""Check that text is valid Unicode."""

from __future__ import annotations

from paceline.errors import ConfigError


def is_text(text: object) -> bool:
    """Return whether an object is a string that UTF-8 can encode.

    UTF-8 cannot encode lone surrogates. Python uses them, for example, for invalid bytes in a file
    name.
    """
    if not isinstance(text, str):
        return False
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def require_text(where: str, text: str) -> str:
    """Check that UTF-8 can encode a text, and return the text.

    Args:
        where: Name of the text in error messages.
        text: Text to check.
    Raises:
        ConfigError: The text contains a lone surrogate.
    """
    if not is_text(text):
        raise ConfigError(
            f"{where}: got {text[:60]!a}, with half a surrogate pair or bytes that are not UTF-8;"
            " expected text. Write it in UTF-8."
        )
    return text
