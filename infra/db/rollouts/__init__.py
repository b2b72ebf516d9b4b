"""Rollouts as stored: their groups, lives, turns and ends.

Writes are fenced by the epoch (`infra.db.fence`).
"""
