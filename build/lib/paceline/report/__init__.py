"""Common parts of reports: documents, tables, drawings and prompts."""
