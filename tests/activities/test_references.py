"""Every activity reference has one implementation, with its name, input and result."""

import inspect
import typing
from types import ModuleType

from temporalio import activity

from activities import (
    campaigns,
    cross_testing,
    extensions,
    grading,
    judging,
    own_rewards,
    playing,
    rollouts,
    runs,
    sandbox,
)
from activities.programs import programs, sessions
from activities.replies import answers, replies
from activities.training import publishing, retraining, sending, sft, sft_training, training
from mainspring.protocol import activities
from mainspring.protocol.activities import ActivityRef

MODULES = (
    answers,
    campaigns,
    cross_testing,
    extensions,
    grading,
    judging,
    own_rewards,
    playing,
    programs,
    publishing,
    replies,
    retraining,
    rollouts,
    runs,
    sandbox,
    sending,
    sessions,
    sft,
    sft_training,
    training,
)
REFS = [value for value in vars(activities).values() if isinstance(value, ActivityRef)]


def implementations(module: ModuleType) -> dict[str, typing.Any]:
    found = {}
    for _, kind in inspect.getmembers(module, inspect.isclass):
        if kind.__module__ != module.__name__:
            continue
        for _, method in inspect.getmembers(kind, inspect.isfunction):
            defined = activity._Definition.from_callable(method)
            if defined is not None and defined.name is not None:
                found[defined.name] = method
    return found


def test_references_and_implementations_are_pairs() -> None:
    found = {name: it for module in MODULES for name, it in implementations(module).items()}
    assert sorted(found) == sorted(ref.name for ref in REFS)
    for ref in REFS:
        hints = typing.get_type_hints(found[ref.name])
        gives = hints.pop("return")
        assert (list(hints.values()), gives) == ([ref.takes], ref.gives), ref.name
