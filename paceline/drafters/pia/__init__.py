"""Implement "Lookahead" from PainlessInferenceAcceleration (PIA)."""
