"""The read side of the store: figures of campaigns, for reports, screens and searches.

Invariants: results are frozen values, never rows, and nothing is written. A function that takes a
connection is one of several that read in the same `Database.snapshot`, so that their figures agree;
one that takes the database stands alone. Rates are over what could be scored: masked rollouts are
in no denominator. None means "not measured".
"""
