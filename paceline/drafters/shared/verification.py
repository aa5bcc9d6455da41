"""Check the option `verification` of drafters that use a draft model."""

from __future__ import annotations

from paceline.errors import ConfigError, did_you_mean

_VERIFICATIONS = ("reject", "traverse", "follow")


def require_verification(owner: str, verification: str) -> None:
    """Raise an error if a drafter's option `verification` has an unknown value.

    Args:
        owner: Name of the drafter, for the message.
        verification: Value to check.
    Raises:
        ConfigError: The value is unknown; the message suggests a close match.
    """
    if verification not in _VERIFICATIONS:
        hint = did_you_mean(verification, _VERIFICATIONS)
        raise ConfigError(
            f"{owner}: got verification={verification!r}; expected a known value.{hint}"
        )
