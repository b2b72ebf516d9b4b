"""Experiment trackers that get a campaign's figures, one a file; `choice` finds the campaign's."""
