"""Training as stored: batches, steps, policy versions, and the leases of trainers."""
