"""Train hidden-state draft heads."""
