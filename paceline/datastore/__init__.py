"""Build, extend and search the token stores of the retrieval drafters.

- `build(path, documents, vocab_size)` writes a store of token-id sequences.
- `add(path, documents)` adds more of them.
- `open(path)` returns a `Datastore` to search and to append to.
- `info(path)` and `verify(path)` return the contents and the damage.

docs/datastore.md describes the format, the guarantees and the cost.
"""

from paceline.datastore.fingerprint import fingerprint_of
from paceline.datastore.live import Datastore
from paceline.datastore.live import open_store as open
from paceline.datastore.options import BuildOptions, UpdateOptions
from paceline.datastore.report import Damage, Info, info, verify
from paceline.datastore.search import Ranges
from paceline.datastore.store import Snapshot
from paceline.datastore.writer import add, build

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
    "fingerprint_of",
    "info",
    "open",
    "verify",
]
