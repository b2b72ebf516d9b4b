"""Which sandbox backend runs a task: the campaign's `sandbox.backend`, else one by its image.

Invariant: this is the only place that derives a backend from a task. Pure. Imported by nodes,
which open sandboxes, and by commands, which check that a backend can be had.
"""

BWRAP = "bwrap"
"""bubblewrap on the node's own root, read-only; for tasks that need no image."""
DOCKER = "docker"
"""A container from the task's image."""
IN_PROCESS = "process"
"""No sandbox: a world of an environment of one's own, in the process of its node. It stands in
leases in the place of a backend's name."""


def backend_name(configured: str | None, image: str | None) -> str:
    """A name of `infra.sandbox.backends.BACKENDS`, or the path of a class of your own."""
    if configured is not None:
        return configured
    return BWRAP if image is None else DOCKER
