"""Store keys and values in slots that never move."""
