"""Train and evaluate draft models; see docs/drafts.md."""
