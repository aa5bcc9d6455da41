"""Draft from the target's hidden states with an EAGLE-3, DFlash or MTP head."""
