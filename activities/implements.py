"""Binds a method to the activity reference that it implements.

The type checker compares the method's input and result with the reference's. Used by every file
here that defines activities, and by the tests' own trainers and nodes.
"""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from temporalio import activity

from mainspring.protocol.activities import ActivityRef, In, Out

S = TypeVar("S")
Method = Callable[[S, In], Awaitable[Out]]


def implements(ref: ActivityRef[In, Out]) -> Callable[[Method[S, In, Out]], Method[S, In, Out]]:
    """Register the decorated method under the reference's name."""
    return activity.defn(name=ref.name)
