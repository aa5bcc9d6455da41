"""Parts of several drafters."""
