"""Campaign files: read, completed, checked, refused by name, and read again as stored."""
