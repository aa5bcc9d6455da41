"""Multiply few rows with weights on CPUs; a row's bits depend on no other row."""
