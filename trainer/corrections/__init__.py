"""Corrections of what engine and trainer disagree about, one a file; `mainspring.algorithms.choice`
finds the campaign's."""
