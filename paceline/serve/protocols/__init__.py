"""Serve other API protocols by converting their requests to chats.

The answers are converted back to the format of the protocol.
"""
