"""Provide the command-line interface, one module per command."""
