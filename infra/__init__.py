"""Adapters: database, Temporal, sandbox backends, policy clients, task sources, verdicts, stack.

May import `mainspring`; imported by everything that does I/O.
"""
