"""Simulated time: real workflows and a real store, with models, sandboxes and a trainer that sleep.

Invariants: all times of the fleet are drawn from one seed (`trace`, `lives`) and pass on Temporal's
time-skipping server (`passing_time`); what decides is the project's own code: the workflows, the
store's activities, the rule of admission. Postgres keeps the real clock, so no decision may compare
its times with Temporal's: `playing` lists them. Imported by `cli.bench.simulate_command` and by
tests.
"""
