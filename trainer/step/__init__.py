"""One step on a rank: its passes over a batch, and one update for each mini-batch.

Imports the engines, losses, corrections and values; imported by `trainer.process`.
"""
