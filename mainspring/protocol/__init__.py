"""Payloads of Temporal: activity names, inputs and results.

Invariant 1: payloads carry ids and short summaries only (below 4 KB); tokens, texts and outputs
stay in Postgres. Shared by workflows and activities; only optional fields may be added, because
workflows in flight were started with the old shape.
"""
