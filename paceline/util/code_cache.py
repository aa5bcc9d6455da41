"""Where numba keeps compiled functions: beside their module, else in the cache, else in memory
only.

`NUMBA_CACHE_DIR` comes first where it is set. Compiled code that lies beside a module is read also
where that folder cannot be written: whoever installs paceline for others may compile it once for
all of them.
"""

from __future__ import annotations

import os
from pickle import UnpicklingError
from typing import Any

from numba.core.caching import (
    CompileResultCacheImpl,
    FunctionCache,
    InTreeCacheLocator,
    UserProvidedCacheLocator,
    UserWideCacheLocator,
)

from paceline.errors import ConfigError
from paceline.util import cache

_FOLDER = "compiled"


class _InCache(UserProvidedCacheLocator):  # type: ignore[misc]
    """Below `cache.root()`, in a folder that only its owner may write."""

    def __init__(self, function: Any, file: str) -> None:
        super().__init__(function, file)
        self._cache_path = str(cache.root() / _FOLDER / self.get_suitable_cache_subpath(file))

    def ensure_cache_path(self) -> None:
        """Make the folder."""
        os.makedirs(cache.root() / _FOLDER, mode=0o700, exist_ok=True)
        super().ensure_cache_path()

    @classmethod
    def from_function(cls, function: Any, file: str) -> Any:
        """Return one for a function; None where the cache cannot be written."""
        try:
            return super(UserProvidedCacheLocator, cls).from_function(function, file)
        except ConfigError:  # no home
            return None


class _ReadOnly(InTreeCacheLocator):  # type: ignore[misc]
    """Beside a module, in a folder that cannot be written: what is there is read."""

    def ensure_cache_path(self) -> None:
        """Leave it as it is; the attempt to save says why that is impossible."""


class _Functions(CompileResultCacheImpl):  # type: ignore[misc]
    _locator_classes = [  # noqa: RUF012 - numba's
        *(
            _InCache if one is UserWideCacheLocator else one
            for one in CompileResultCacheImpl._locator_classes
        ),
        _ReadOnly,
    ]


class CodeCache(FunctionCache):  # type: ignore[misc]
    """Compiled forms of one function. A folder that cannot be read or written costs time, and
    one notice.
    """

    _impl_class = _Functions
    _writable = True

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the compiled form for a signature; None where there is none that can be read."""
        try:
            return super().load_overload(sig, target_context)
        except OSError:
            return None
        except (EOFError, UnpicklingError, AttributeError, ImportError):
            # The index is damaged, or names a class that another version of paceline had.
            self._forget()
            return None

    def _forget(self) -> None:
        try:
            self.flush()
        except OSError:
            CodeCache._writable = False

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep a compiled form for other processes."""
        if CodeCache._writable:
            try:
                super().save_overload(sig, data)
            except OSError as error:
                CodeCache._writable = False  # a full disk is not tried again for each function
                cache.note_unwritable(f"{self.cache_path!r} cannot be written ({error.strerror})")
