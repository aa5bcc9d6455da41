"""Serve the Messages API and the Responses API.

The server converts requests to these APIs to chat requests, and the answers to the format of the
API.
"""
