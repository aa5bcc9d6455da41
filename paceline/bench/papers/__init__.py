"""Measure the tables and figures of published papers again."""
