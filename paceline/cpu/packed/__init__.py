"""Unpack the blocks of packed weights, and multiply with them."""
