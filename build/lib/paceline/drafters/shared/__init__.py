"""Components shared by several drafters."""
