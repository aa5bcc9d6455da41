"""Implement REST, which drafts from a datastore (He et al. 2023)."""
