"""`mainspring eval ...`: its commands and their screen."""
