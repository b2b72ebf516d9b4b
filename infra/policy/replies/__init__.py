"""Replies to agents and programs, in tokens or in text: implementations of the seams at the
door."""
