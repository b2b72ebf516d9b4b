"""Programs, functions and agents outside that play rollouts."""
