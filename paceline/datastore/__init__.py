"""The token store that retrieval drafters search: built once, mapped into memory, appended to while
it is used.

    build(path, documents, vocab_size)      documents: token-id sequences
    add(path, documents)                    more of them
    open(path) -> Datastore                 .snapshot for compiled searches, .append for finished
    outputs info(path), verify(path)                what it holds, what is damaged

See docs/datastore.md for the format, the guarantees and the cost.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paceline.datastore.fingerprint import fingerprint_of
    from paceline.datastore.live import Datastore, LiveOptions
    from paceline.datastore.live import open_store as open
    from paceline.datastore.report import Damage, Info, info, verify
    from paceline.datastore.store import Ranges, Snapshot
    from paceline.datastore.writer import Means, add, build

# Modules are imported on first use: options of drafters read the settings without a compiler.
_MODULES = {
    "fingerprint": ("fingerprint_of",),
    "live": ("Datastore", "LiveOptions", "open"),
    "report": ("Damage", "Info", "info", "verify"),
    "store": ("Ranges", "Snapshot"),
    "writer": ("Means", "add", "build"),
}

__all__ = [
    "Damage",
    "Datastore",
    "Info",
    "LiveOptions",
    "Means",
    "Ranges",
    "Snapshot",
    "add",
    "build",
    "fingerprint_of",
    "info",
    "open",
    "verify",
]


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            attribute = "open_store" if name == "open" else name
            return getattr(import_module(f"paceline.datastore.{module}"), attribute)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
