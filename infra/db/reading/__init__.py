"""The read side of the store: figures of one campaign, for reports and screens.

Invariants: results are frozen values, never rows; nothing is written; each function reads through
the connection it is given, so that figures of one `Database.snapshot` agree with each other. Rates
are over what could be scored: masked rollouts are in no denominator. None means "not measured".
"""
