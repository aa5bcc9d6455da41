"""Implement the "Lookahead" framework from PainlessInferenceAcceleration (PIA)."""
