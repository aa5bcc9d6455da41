"""`model.generate` with and without drafts."""
