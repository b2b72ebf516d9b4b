"""Sandboxes from images: Docker's API, pulling, and images without a future."""
