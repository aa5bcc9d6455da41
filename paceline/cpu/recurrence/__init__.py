"""Run recurrent layers along draft trees on CPUs, with compiled code."""
