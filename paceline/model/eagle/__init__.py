"""Draft models that read the target's hidden states (EAGLE, Li et al. 2024; GLIDE, Du et al.
2024).
"""
