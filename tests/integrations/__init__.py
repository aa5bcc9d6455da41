"""Test `model.generate` with and without drafts, and other integrations."""
