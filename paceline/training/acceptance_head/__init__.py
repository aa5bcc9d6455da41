"""Train and evaluate acceptance heads (SpecDec++), and record their training data.

The package also calibrates the probabilities that trained heads predict.
"""
