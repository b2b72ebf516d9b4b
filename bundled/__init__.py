"""The demo: generated tasks with one seeded bug each, a small model, its warm start, Muon.

The tasks are pure and deterministic: the same seed gives the same on every machine. The model, its
warm start and Muon need torch, and only the trainer imports them.
"""
