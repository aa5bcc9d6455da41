"""Implement SSSD, which drafts from the request's text and a datastore.

The method is described in Marzollo et al. 2024.
"""
