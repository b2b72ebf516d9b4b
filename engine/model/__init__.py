"""The model behind the engine: how requests are computed, what is kept of them, and its weights.

The ground of the engine: imports no other file of it.
"""
