"""Build, extend and search token stores for the retrieval drafters.

- `build(path, documents, vocab_size)` writes a store of token-id sequences.
- `create(path, vocab_size)` writes an empty store.
- `add(path, documents)` adds more sequences.
- `open(path)` returns a `Datastore` that can be searched and appended to.
- `info(path)` describes the contents; `verify(path)` lists any damage.

docs/guides/datastore.md explains how to use stores, and what they guarantee.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paceline.datastore.creation import create, has_store
    from paceline.datastore.fingerprint import fingerprint_of
    from paceline.datastore.live import Datastore
    from paceline.datastore.live import open_store as open
    from paceline.datastore.options import BuildOptions, UpdateOptions
    from paceline.datastore.report import Damage, Info, info, verify
    from paceline.datastore.search import Ranges
    from paceline.datastore.store import Snapshot
    from paceline.datastore.writer import add, build

# Imported on first use, so that drafter options can read this package's settings without a
# compiler.
_MODULES = {
    "fingerprint_of": "fingerprint",
    "Datastore": "live",
    "open": "live",
    "BuildOptions": "options",
    "UpdateOptions": "options",
    "Damage": "report",
    "Info": "report",
    "info": "report",
    "verify": "report",
    "Ranges": "search",
    "Snapshot": "store",
    "add": "writer",
    "build": "writer",
    "create": "creation",
    "has_store": "creation",
}

__all__ = [
    "BuildOptions",
    "Damage",
    "Datastore",
    "Info",
    "Ranges",
    "Snapshot",
    "UpdateOptions",
    "add",
    "build",
    "create",
    "fingerprint_of",
    "has_store",
    "info",
    "open",
    "verify",
]


def __getattr__(name: str) -> Any:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    attribute = "open_store" if name == "open" else name
    return getattr(import_module(f"paceline.datastore.{module}"), attribute)
