"""Runs that train nothing: evaluations, verifications, regrades."""
