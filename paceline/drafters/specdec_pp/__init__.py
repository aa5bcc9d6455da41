"""Implement SpecDec++, which drafts until a trained head expects a rejection.

The method is described in Huang, Guo, Wang 2024.
"""
