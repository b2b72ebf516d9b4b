"""Copies of pages in files, which need no server."""
