"""Serve other protocols by converting requests to chats and answers back."""
