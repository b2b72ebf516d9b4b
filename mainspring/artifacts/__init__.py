"""Files: where a campaign's lie, which ones stay, and what the bits in them depend on."""
