"""Implement Lookahead Decoding, which drafts n-grams with the target model.

The method is described in Fu et al. 2024.
"""
