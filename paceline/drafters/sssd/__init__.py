"""SSSD."""
