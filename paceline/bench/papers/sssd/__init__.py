"""SSSD (Marzollo et al. 2024), measured again: figures 2 to 5, table 1, sections 3.2.1 and 4.2."""
