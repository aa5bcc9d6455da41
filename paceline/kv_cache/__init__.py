"""Store keys and values in slots with fixed addresses."""
