"""The side effects, one small file per noun, run by the workers.

Use `infra` and the store; never import `workflows` or `trainer`. Each activity may run twice, also
at the same time: every write goes through the store's idempotent, fenced functions.
"""
