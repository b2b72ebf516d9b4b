"""Curricula, one a file; `mainspring.curricula.choice` finds the campaign's."""
