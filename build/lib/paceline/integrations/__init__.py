"""Run paceline's drafters inside other libraries."""
