"""Record data for, train, evaluate and calibrate acceptance heads (SpecDec++)."""
