"""Sections of who plays and who judges: agents, their texts and contexts, and judges."""
