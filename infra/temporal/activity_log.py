"""Whatever is logged while an activity runs carries the campaign, rollout and turn of its input.

Imported by `connection`. Apart from `log`, which screens load: they do without the half of
Temporal's SDK that runs workers, which takes long to load.
"""

from typing import Any

import structlog
import temporalio.client
import temporalio.worker
from temporalio import activity

BOUND = ("campaign", "rollout", "turn")
"""Fields of an activity's input that each of its lines carries."""


class BindLogFields(temporalio.client.Interceptor, temporalio.worker.Interceptor):
    def intercept_activity(
        self, next: temporalio.worker.ActivityInboundInterceptor
    ) -> temporalio.worker.ActivityInboundInterceptor:
        return _BindOfActivity(next)


class _BindOfActivity(temporalio.worker.ActivityInboundInterceptor):
    async def execute_activity(self, input: temporalio.worker.ExecuteActivityInput) -> Any:
        request = input.args[0] if input.args else None
        fields = {name: getattr(request, name) for name in BOUND if hasattr(request, name)}
        with structlog.contextvars.bound_contextvars(
            activity=activity.info().activity_type, **fields
        ):
            return await super().execute_activity(input)
