"""Exports from the store for people and other programs, one file a format.

Every format is made from `trajectory.Trajectory`; writing again writes the same. Imported by
commands only.
"""
