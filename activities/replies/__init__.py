"""Replies of the policy, to agents and to programs: asked for, and stored as they were served."""
