"""The domain: plain, typed Python that defines what a task, a rollout, a group and a step are.

Imports no torch, ray, temporalio, docker or sqlalchemy, and nothing of the sibling packages.
Everyone may import it.
"""

__version__ = "0.1.0"
