"""Container hosts, the leases of their sandboxes, and what the store believes is open on them."""
