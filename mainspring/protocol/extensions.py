"""Payloads of the question whether one process can import a run's extensions."""

from pydantic import BaseModel

from mainspring.extensions import Extension


class ExtensionsInput(BaseModel):
    queue: str
    """The task queue that only the process asked polls."""
    extensions: list[Extension]


class ExtensionsResult(BaseModel):
    problems: list[str]
    """A sentence for each that cannot be imported there, in the order asked."""
