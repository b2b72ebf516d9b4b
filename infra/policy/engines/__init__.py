"""Engines and endpoints: asked for replies, watched, and brought to a policy version's weights."""
