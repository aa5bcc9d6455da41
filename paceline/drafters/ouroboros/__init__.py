"""Ouroboros."""
