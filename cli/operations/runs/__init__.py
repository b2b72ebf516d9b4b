"""Runs: launched, played to their end, watched, controlled and planned."""
