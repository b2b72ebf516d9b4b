"""Routes that tell how much the engine has to do: SGLang's /server_info and /v1/loads, and /metrics
for Prometheus under the names that SGLang has there.

Invariant: all of them read the same figures, at one moment of the engine thread.
"""

import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from engine.scheduler import Scheduler
from engine.thread import EngineThread
from mainspring import __version__


@dataclass(frozen=True, slots=True)
class EngineLoad:
    num_running: int
    num_waiting: int
    num_held_tokens: int
    """Prompts and replies of the requests that run."""
    num_generated_tokens: int
    num_prompt_tokens: int
    num_cached_tokens: int
    """Tokens of prompts whose keys and values were kept from a request before."""
    paused: bool
    paused_s: float | None
    weight_version: str

    @classmethod
    def of(cls, scheduler: Scheduler) -> "EngineLoad":
        return cls(
            num_running=len(scheduler.running),
            num_waiting=scheduler.num_queued,
            num_held_tokens=sum(len(sequence.ids) for sequence in scheduler.running),
            num_generated_tokens=scheduler.num_generated_tokens,
            num_prompt_tokens=scheduler.num_prompt_tokens,
            num_cached_tokens=scheduler.num_cached_tokens,
            paused=scheduler.paused,
            paused_s=scheduler.paused_s,
            weight_version=scheduler.weight_version,
        )


class LoadRoutes:
    def __init__(self, engine: EngineThread, scheduler: Scheduler) -> None:
        self._engine = engine
        self._max_batch = scheduler.max_batch
        self._max_tokens = scheduler.max_batch * scheduler.model.context_length
        self._model = str(scheduler.model.directory)

    def table(self) -> list[Route]:
        return [
            Route("/v1/loads", self.loads, methods=["GET"]),
            Route("/metrics", self.metrics, methods=["GET"]),
        ]

    async def internal_state(self) -> dict[str, object]:
        """As SGLang's /server_info has it."""
        load = await self._engine.call(EngineLoad.of)
        return {
            "num_running_reqs": load.num_running,
            "num_waiting_reqs": load.num_waiting,
            "num_generated_tokens": load.num_generated_tokens,
            "num_prompt_tokens": load.num_prompt_tokens,
            "num_cached_tokens": load.num_cached_tokens,
            "paused": load.paused,
            # Not SGLang's: what infra.policy.engines.paused reads.
            "paused_s": load.paused_s,
        }

    async def loads(self, request: Request) -> Response:
        load = await self._engine.call(EngineLoad.of)
        told = {
            "dp_rank": 0,
            "num_running_reqs": load.num_running,
            "num_waiting_reqs": load.num_waiting,
            "num_used_tokens": load.num_held_tokens,
            "num_total_tokens": load.num_held_tokens,
            "max_total_num_tokens": self._max_tokens,
            "max_running_requests": self._max_batch,
            "token_usage": load.num_held_tokens / self._max_tokens,
            "utilization": load.num_running / self._max_batch,
            "timestamp": time.time(),
        }
        answer = {"timestamp": datetime.now(UTC).isoformat(), "loads": [told]}
        return JSONResponse(answer | {"version": f"mainspring-{__version__}"})

    async def metrics(self, request: Request) -> Response:
        registry = CollectorRegistry()
        registry.register(_Collected(self._families(await self._engine.call(EngineLoad.of))))
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    def _families(self, load: EngineLoad) -> list[Metric]:
        gauges = {
            "num_running_reqs": ("Requests that generate.", load.num_running),
            "num_queue_reqs": ("Requests that wait.", load.num_waiting),
            "num_used_tokens": ("Tokens of the requests that generate.", load.num_held_tokens),
            "token_usage": (
                "Share of the KV cache that they hold.",
                load.num_held_tokens / self._max_tokens,
            ),
            "paused": ("1 while generation is paused.", float(load.paused)),
        }
        counters = {
            "prompt_tokens": ("Tokens of prompts.", load.num_prompt_tokens),
            "generation_tokens": ("Tokens that were generated.", load.num_generated_tokens),
            "cached_tokens": ("Tokens of prompts that were cached.", load.num_cached_tokens),
        }
        families: list[Metric] = []
        for name, (told, value) in gauges.items():
            gauge = GaugeMetricFamily(f"sglang:{name}", told, labels=["model_name"])
            gauge.add_metric([self._model], value)
            families.append(gauge)
        for name, (told, value) in counters.items():
            counter = CounterMetricFamily(f"sglang:{name}", told, labels=["model_name"])
            counter.add_metric([self._model], value)
            families.append(counter)
        version = GaugeMetricFamily(
            "mainspring_engine_version", "1 for the weights served.", labels=["weight_version"]
        )
        version.add_metric([load.weight_version], 1.0)
        return [*families, version]


@dataclass(eq=False, slots=True)
class _Collected:
    """Figures of one moment, as prometheus_client asks for them;
    a registry holds it by identity."""

    families: Iterable[Metric]

    def collect(self) -> Iterable[Metric]:
        return self.families

    def describe(self) -> Iterable[Metric]:
        return ()
