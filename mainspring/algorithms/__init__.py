"""Decisions of training, free of torch: admission, order of tasks, advantages, filters, the gap,
and which of them a campaign names. Pure."""
