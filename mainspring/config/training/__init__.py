"""Sections below `[trainer]`: method, correction, critic, optimizer, adapters, ranks."""
