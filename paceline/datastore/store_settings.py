"""Settings of the datastore format; importing them needs no compiler."""

from __future__ import annotations

# Tokens of a suffix that decide its rank in the suffix array; part of the file format. Suffixes
# that agree in all of them are in text order.
SORTED = 64
