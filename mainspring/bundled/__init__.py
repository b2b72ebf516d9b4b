"""Generated tasks: small Python modules with one seeded bug each, for a first campaign.

Pure and deterministic: the same seed gives the same tasks on every machine.
"""
