"""Rollouts that programs play: their lives, requests, and the sessions of agents outside."""
