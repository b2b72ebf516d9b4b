"""`mainspring campaign ...`: its commands and their screens."""
