"""Step engines, one a file; `mainspring.algorithms.choice` finds the campaign's."""
