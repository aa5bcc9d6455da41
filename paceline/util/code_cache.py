"""Store compiled functions on disk, so that later processes can load them.

Numba uses the first of these folders that is writable: `NUMBA_CACHE_DIR`, the module's
`__pycache__`, and paceline's cache. If none of them is writable, compiled code stays in memory.
Numba reads code from a `__pycache__` even if the folder is read-only, so an administrator can
compile once for all users.
"""

from __future__ import annotations

import os
from pickle import UnpicklingError
from typing import Any

from numba.core.caching import (
    CompileResultCacheImpl,
    FunctionCache,
    IndexDataCacheFile,
    InTreeCacheLocator,
    UserProvidedCacheLocator,
    UserWideCacheLocator,
)

from paceline.errors import ConfigError
from paceline.util import cache
from paceline.util.code_sources import sources_digest

_FOLDER = "compiled"


class _InCache(UserProvidedCacheLocator):  # type: ignore[misc]
    """Locates compiled code below `cache.root()`, where only its owner may write."""

    def __init__(self, function: Any, file: str) -> None:
        super().__init__(function, file)
        self._cache_path = str(cache.root() / _FOLDER / self.get_suitable_cache_subpath(file))

    def ensure_cache_path(self) -> None:
        """Create the folder."""
        os.makedirs(cache.root() / _FOLDER, mode=0o700, exist_ok=True)
        super().ensure_cache_path()

    @classmethod
    def from_function(cls, function: Any, file: str) -> Any:
        """Return a locator for compiled code, or None if the cache cannot be written."""
        try:
            return super(UserProvidedCacheLocator, cls).from_function(function, file)
        except ConfigError:  # the user has no home directory
            return None


class _ReadOnly(InTreeCacheLocator):  # type: ignore[misc]
    """Locates compiled code in its module's read-only `__pycache__`."""

    def ensure_cache_path(self) -> None:
        """Do nothing, so that numba accepts a read-only folder.

        If compiled code cannot be saved later, `CodeCache.save_overload` reports the reason.
        """


class _Functions(CompileResultCacheImpl):  # type: ignore[misc]
    _locator_classes = [  # noqa: RUF012 - numba's
        *(
            _InCache if locator is UserWideCacheLocator else locator
            for locator in CompileResultCacheImpl._locator_classes
        ),
        _ReadOnly,
    ]


class CodeCache(FunctionCache):  # type: ignore[misc]
    """Loads and saves the compiled overloads of one function.

    An overload is the function compiled for one signature. Numba compiles the overload again when
    the function's module has changed. If this module uses functions or constants of another module,
    a change in the other module has the same effect (`code_sources`). If a folder cannot be read or
    written, every process compiles the functions, and logs one warning.

    Args:
        function: Python function.
    """

    _impl_class = _Functions
    _writable = True

    def __init__(self, function: Any) -> None:
        super().__init__(function)
        locator = self._impl.locator
        self._cache_file = IndexDataCacheFile(
            self._cache_path,
            self._impl.filename_base,
            (locator.get_source_stamp(), sources_digest(function.__code__.co_filename)),
        )

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the compiled overload for a signature, or None if it cannot be read."""
        try:
            return super().load_overload(sig, target_context)
        except OSError:
            return None
        except (EOFError, UnpicklingError, AttributeError, ImportError):
            # The index is damaged, or names a class from another paceline version.
            self._forget()
            return None

    def _forget(self) -> None:
        try:
            self.flush()
        except OSError:
            CodeCache._writable = False

    def save_overload(self, sig: Any, data: Any) -> None:
        """Store a compiled overload for other processes."""
        if CodeCache._writable:
            try:
                super().save_overload(sig, data)
            except OSError as error:
                CodeCache._writable = False  # do not retry on a full disk for each function
                cache.note_unwritable(f"{self.cache_path!r} cannot be written ({error.strerror})")
