"""Record data for acceptance heads (SpecDec++); train, evaluate, calibrate them."""
