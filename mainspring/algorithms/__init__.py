"""Decisions of training, free of torch: admission, order of tasks, advantages, the gap. Pure."""
