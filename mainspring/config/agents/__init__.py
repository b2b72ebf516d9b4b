"""Sections of agents: who plays, with which texts, in which context."""
