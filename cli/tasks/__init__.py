"""`mainspring tasks ...`: its commands."""
