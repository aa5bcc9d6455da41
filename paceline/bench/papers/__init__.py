"""Papers whose tables and figures are measured again."""
