"""Implement SpecDec++ (Huang, Guo, Wang 2024)."""
