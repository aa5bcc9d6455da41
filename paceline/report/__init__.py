"""Provide the common parts of reports: documents, tables, plots and prompts."""
