"""Count the invalid records in a datastore's input, and list the first few."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from paceline.cli.settings import MAX_NAMED_RECORDS
from paceline.cli.show import print_note
from paceline.errors import ConfigError

if TYPE_CHECKING:
    from paceline.datastore.gathering import Document


class InvalidRecords:
    """Counts invalid records and lists the first few.

    Args:
        skip: Whether to skip invalid records. If False, an error lists up to ten invalid records,
            and nothing is written.
    """

    def __init__(self, skip: bool) -> None:
        self._skip = skip
        self._errors: list[ConfigError] = []
        self._count = 0

    def __call__(self, error: ConfigError) -> None:
        """Count an invalid record.

        Raises:
            ConfigError: This is the tenth invalid record, and skipping is not allowed.
        """
        self._count += 1
        if self._count <= MAX_NAMED_RECORDS:
            self._errors.append(error)
        if self._count == MAX_NAMED_RECORDS and not self._skip:
            self._refuse(f"at least {MAX_NAMED_RECORDS}")

    def counted(self, documents: Iterable[Document]) -> Iterator[Document]:
        """Yield the documents, and then check the number of invalid records.

        Raises:
            ConfigError: All records were invalid; or some were invalid, and skipping is not
                allowed.
        """
        read = 0
        for document in documents:
            read += 1
            yield document
        if self._errors and not read and self._skip:
            raise ConfigError(
                f"inputs: there is no valid record, so nothing was written. {self._errors[0]}"
            )
        if self._errors and not read:
            raise self._errors[0]
        if self._errors and not self._skip:
            self._refuse(str(self._count))

    def _refuse(self, count: str) -> None:
        for error in self._errors:
            print_note(f"invalid: {error}")
        raise ConfigError(
            f"inputs: {count} records are invalid, so nothing was written. Correct them, or pass"
            " --skip-invalid."
        )

    def report(self) -> None:
        """Report the skipped records on standard error."""
        for error in self._errors:
            print_note(f"skipped: {error}")
        if self._count:
            more = (
                f", of which the first {MAX_NAMED_RECORDS} are named"
                if self._count > MAX_NAMED_RECORDS
                else ""
            )
            records = "1 record was" if self._count == 1 else f"{self._count} records were"
            print_note(f"{records} skipped{more}")
