"""Sandboxes for tasks without an image: bubblewrap, cgroups and seccomp on the node itself."""
