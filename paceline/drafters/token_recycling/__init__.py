"""Implement Token Recycling, which drafts from cached next-token distributions.

The method is described in Luo et al. 2024.
"""
