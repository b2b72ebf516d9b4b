"""Ranks measured without a campaign: numbers on a GPU, and bits of two source trees."""
