"""The live viewer: pages about runs, rollouts, tasks and machines, as the store has them now.

Invariants: its pages change nothing (their sessions are read-only, and each query is bounded), and
its `actions` only where they are switched on, by functions that `cli` hands over; everything
that a model, a tool or a test wrote is hostile and reaches a page as text; every page works without
scripts and exists as JSON. May import `reports`, `infra` and `mainspring`; `cli` starts it.
"""
