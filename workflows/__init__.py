"""Deterministic orchestration: rollout, group, evaluation, campaign, run.

Imports `mainspring` (names, payloads, pure decisions) and temporalio, nothing with side effects.
Every side effect is an activity, named in `mainspring.protocol.names`.
"""
