"""What a rollout did, turn by turn, and the sample that training takes from it. Pure."""
