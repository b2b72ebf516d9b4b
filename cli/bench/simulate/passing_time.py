"""How time passes: before an activity starts, its workflow sleeps for as long as the work takes.

The time-skipping server skips timers, and no time while an activity runs. So each activity does its
work at once, at the simulated moment at which the work ends. Invariant: a duration is a pure
function of the setting and of the activity's input, so a replayed workflow sleeps as before.
"""

import asyncio
from typing import Any, cast

from temporalio.worker import (
    Interceptor,
    StartActivityInput,
    WorkflowInboundInterceptor,
    WorkflowInterceptorClassInput,
    WorkflowOutboundInterceptor,
)
from temporalio.workflow import ActivityHandle

from cli.bench.simulate.lives import life_of, number_of, slice_of
from cli.bench.simulate.setting import GRADE_S, NOTICED_S, OPEN_S, PUBLISH_S, Setting
from mainspring.protocol.activities import (
    GRADE,
    OPEN_SANDBOX,
    PLAY_TURNS,
    PUBLISH_POLICY,
    RESTORE_SANDBOX,
    TRAIN_STEP,
)


def duration_s(setting: Setting, activity: str, ask: Any) -> float:
    """Duration of one activity's work, up to its end or to the moment its failure is known."""
    fixed_s = {
        OPEN_SANDBOX.name: OPEN_S,
        GRADE.name: GRADE_S,
        PUBLISH_POLICY.name: PUBLISH_S,
        TRAIN_STEP.name: setting.train_s,
    }
    if activity not in (PLAY_TURNS.name, RESTORE_SANDBOX.name):
        return fixed_s.get(activity, 0.0)
    life = life_of(setting, ask.rollout, ask.epoch, number_of(ask.sandbox))
    if activity == RESTORE_SANDBOX.name:
        return life.restore_s + (NOTICED_S if life.is_lost_restoring else 0.0)
    life = slice_of(setting, life, ask)
    return life.play_s + (NOTICED_S if life.is_lost else 0.0)


class PassingTime(Interceptor):
    """Interceptor of the worker that runs the workflows."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting

    def workflow_interceptor_class(
        self, input: WorkflowInterceptorClassInput
    ) -> type[WorkflowInboundInterceptor]:
        setting = self._setting

        class Inbound(WorkflowInboundInterceptor):
            def init(self, outbound: WorkflowOutboundInterceptor) -> None:
                super().init(_Sleeping(outbound, setting))

        return Inbound


class _Sleeping(WorkflowOutboundInterceptor):
    def __init__(self, next: WorkflowOutboundInterceptor, setting: Setting) -> None:
        super().__init__(next)
        self._setting = setting

    def start_activity(self, input: StartActivityInput) -> ActivityHandle[Any]:
        sleep_s = duration_s(self._setting, input.activity, input.args[0])

        async def after_sleep() -> Any:
            if sleep_s > 0:
                await asyncio.sleep(sleep_s)
            return await self.next.start_activity(input)

        # The workflows only await what they start, or cancel it: a task does.
        return cast(ActivityHandle[Any], asyncio.create_task(after_sleep()))
