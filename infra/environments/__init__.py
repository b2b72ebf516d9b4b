"""Environments as a sandbox node hosts them: Mainspring's own, and classes of one's own."""
