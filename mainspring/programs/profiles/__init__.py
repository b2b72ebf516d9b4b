"""Profiles: how each known client is started, a file each."""
