"""Store compiled functions on disk, so that later processes can load them.

Numba stores code in the first writable folder among `NUMBA_CACHE_DIR`, the module's `__pycache__`
and paceline's cache. If none is writable, compiled code stays in memory. Numba reads code from a
`__pycache__` even if the folder is read-only, so an administrator can compile once for all users.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import re
from contextlib import suppress
from glob import escape
from pathlib import Path
from typing import Any
from uuid import uuid4

import numba
from numba.core.caching import (
    CompileResultCacheImpl,
    FunctionCache,
    InTreeCacheLocator,
    UserProvidedCacheLocator,
    UserWideCacheLocator,
)
from numba.core.serialize import dumps

from paceline.errors import ConfigError
from paceline.util import cache
from paceline.util.code_sources import sources_digest
from paceline.util.compilation import before_compilation

_FOLDER = "compiled"
_SUFFIX = ".code"
_CHECKSUM_BYTES = hashlib.sha256().digest_size
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_LINE = re.compile(r"-\d+(?=\.py\d)")


class _InCache(UserProvidedCacheLocator):  # type: ignore[misc]
    """Locates compiled code in paceline's cache, where only the user may write."""

    def __init__(self, function: Any, file: str) -> None:
        super().__init__(function, file)
        self._cache_path = str(cache.root() / _FOLDER / self.get_suitable_cache_subpath(file))

    def ensure_cache_path(self) -> None:
        """Create the folder for compiled code."""
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


class CodeFiles:
    """Stores each compiled overload of a function in a separate file.

    The file name contains a hash of everything on which the code depends. Numba's own cache instead
    numbers the files and lists them in an index. If two processes compile at the same time, they
    may choose the same number, and later processes would run the code of the wrong overload.

    Args:
        folder: Folder that contains the files.
        name: Name of the function; the names of its files begin with it.
        stamp: Values that change with the function's source code.
    """

    def __init__(self, folder: str, name: str, stamp: object) -> None:
        self._folder, self._name = Path(folder), name
        self._mark = f".{_hash_of((numba.__version__, stamp))[:16]}."
        # The pattern ignores the function's line number, and also matches files of numba's cache.
        self._family = f"{_LINE.sub('-*', escape(name))}.*"

    def load(self, key: tuple[Any, ...]) -> Any:
        """Return the code stored for a key; None if it is missing or damaged."""
        path = self._path_of(key)
        if path is None:
            return None
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return None
        body = content[_CHECKSUM_BYTES:]
        if hashlib.sha256(body).digest() != content[:_CHECKSUM_BYTES]:
            return None
        return pickle.loads(body)

    def save(self, key: tuple[Any, ...], code: Any) -> None:
        """Store the code for a key, and remove code compiled from older sources."""
        path = self._path_of(key)
        if path is None:
            return
        body = dumps(code)
        temporary = path.with_name(f"{path.name}.{uuid4().hex}.tmp")
        try:
            temporary.write_bytes(hashlib.sha256(body).digest() + body)
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        self._remove_outdated()

    def flush(self) -> None:
        """Remove all stored code of the function."""
        for path in self._folder.glob(self._family):
            path.unlink(missing_ok=True)

    def _path_of(self, key: tuple[Any, ...]) -> Path | None:
        """Return the file for a key; None if the key contains a memory address.

        If an argument is itself a compiled function, its type contains an address that differs
        between processes. Such code is stored only as part of its caller's code.
        """
        signature = key[0]
        kinds = signature if isinstance(signature, tuple) else (*signature.args, signature)
        text = repr([_name_of(kind) for kind in kinds]) + repr(key[1:])
        if _ADDRESS.search(text):
            return None
        return self._folder / f"{self._name}{self._mark}{_hash_of(text)[:32]}{_SUFFIX}"

    def _remove_outdated(self) -> None:
        for path in self._folder.glob(self._family):
            if self._mark not in path.name:
                with suppress(OSError):
                    path.unlink()


def _hash_of(value: object) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()


def _name_of(kind: Any) -> str:
    """Return a name that identifies an argument type.

    The name of a named tuple includes the tuple's module and fields.
    """
    owner = getattr(kind, "instance_class", None)  # only types of named tuples have this
    if owner is None:
        return repr(kind)
    return f"{owner.__module__}.{owner.__qualname__}{owner._fields}{kind!r}"


class CodeCache(FunctionCache):  # type: ignore[misc]
    """Loads and saves the compiled overloads of one function.

    An overload is the function compiled for one signature. Stored overloads become outdated when
    the source of the function's module changes. They also become outdated when the source changes
    in a module from which this module imports functions or constants (see `code_sources`). If the
    folder cannot be read or written, every process compiles the function itself and logs one
    warning.

    Args:
        function: Python function to compile.
    """

    _impl_class = _Functions
    _writable = True

    def __init__(self, function: Any) -> None:
        super().__init__(function)
        self._module: str = function.__module__
        locator = self._impl.locator
        stamp = locator.get_source_stamp(), sources_digest(function.__code__.co_filename)
        self._cache_file = CodeFiles(self._cache_path, self._impl.filename_base, stamp)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the stored overload for a signature; None if numba must compile it."""
        overload = None
        try:
            overload = super().load_overload(sig, target_context)
        except OSError:
            pass
        except (EOFError, pickle.UnpicklingError, AttributeError, ImportError):
            # The file names a class from another paceline version.
            self._forget()
        if overload is None:
            before_compilation(self._module)
        return overload

    def _forget(self) -> None:
        try:
            self.flush()
        except OSError:
            CodeCache._writable = False

    def save_overload(self, sig: Any, data: Any) -> None:
        """Store a compiled overload, so that other processes can load it."""
        if CodeCache._writable:
            try:
                super().save_overload(sig, data)
            except OSError as error:
                CodeCache._writable = False  # if the disk is full, do not retry for each function
                cache.note_unwritable(f"{self.cache_path!r} cannot be written ({error.strerror})")
