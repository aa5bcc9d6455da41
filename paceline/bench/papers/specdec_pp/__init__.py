"""SpecDec++ (Huang, Guo, Wang 2024), measured again: figures 3 and 4, tables 1 and 2, section
2.1, appendix C.3.
"""
