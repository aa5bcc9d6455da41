"""Reproduce SSSD (Marzollo et al. 2024).

The package reproduces figures 2 to 5, table 1, and sections 3.2.1 and 4.2.
"""
