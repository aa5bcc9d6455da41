"""Draft models: train a small one for any target, and judge it. See docs/drafts.md."""
