"""Decide which draft tokens the target accepts."""
