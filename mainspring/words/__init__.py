"""Words for people: numbers, causes, waits, and text from elsewhere."""
