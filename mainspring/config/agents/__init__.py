"""Sections of who plays, what they act on, and who judges: agents, their texts and contexts,
environments that are services, and judges."""
