"""Multiply rows by packed weights on CPUs, and unpack the blocks of weights."""
