"""Run recurrent layers along draft trees, with compiled code or with torch."""
