"""Reproduce SpecDec++ (Huang, Guo, Wang 2024).

The package reproduces figures 3 and 4, tables 1 and 2, section 2.1 and appendix C.3.
"""
