"""Adapters and plants: database, sandbox backends, policy engines, embedded stack, reports.

May import `mainspring`; imported by `activities`, `workers`, `trainer` and, lazily, the CLI.
"""
