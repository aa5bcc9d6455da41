"""Train drafts, hidden-state draft heads and acceptance heads."""
