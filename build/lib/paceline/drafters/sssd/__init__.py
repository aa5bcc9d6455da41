"""Implement SSSD (Marzollo et al. 2024)."""
