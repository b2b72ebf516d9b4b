"""Temporal for every program: the connection, failures by kind, heartbeats, its log."""
