"""Record training data for acceptance heads (SpecDec++); train and evaluate heads.

The package also calibrates the probabilities that trained heads predict.
"""
