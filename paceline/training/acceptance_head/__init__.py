"""Record data for acceptance heads (SpecDec++), and train and evaluate the heads.

The package also calibrates the probabilities of trained heads.
"""
