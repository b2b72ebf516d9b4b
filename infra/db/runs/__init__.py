"""Runs as stored: configuration, status, and how far each one is."""
