"""Record training data for, train, evaluate and calibrate acceptance heads of SpecDec++."""
