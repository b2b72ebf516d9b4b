"""vLLM's routes for tokens and for weights.

Its server was started with --enable-scale-out, and with VLLM_SERVER_DEV_MODE=1 (`mainspring serve
--engine vllm`).

Invariants, each against something that vLLM does without a word:
- A load is aborted replies, then a label that is none, new weights, then a label with a name of its
  own for this load. So a label that is the same before and after some tokens is that of all of
  them, which a stream does not tell before its end; and whatever dies in between, or a reload that
  failed and left an engine that answers and is dead, leaves an engine that is asked for no tokens.
- Only names that vLLM knows are sent: it ignores others.
- A reply that is shorter than asked for, as the context is full, is an error.
- Engines whose log-probs are not those of the distribution that was sampled, or whose output layer
  keeps old weights, are refused before they are trained on.

Used where `policy.api` is "vllm".
"""

import asyncio
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

import httpx

from infra.policy.engines.dialects.lent_memory import LENDING, LENT, TAKEN, TAKING
from infra.policy.engines.dialects.protocol import (
    Calls,
    EngineRequest,
    Json,
    LendingRoutes,
    PausedEngine,
    Streaming,
)
from infra.policy.engines.dialects.same_label import SameLabel
from infra.policy.engines.dialects.vllm_facts import VllmFacts, ask_facts, keeps_old_output
from infra.policy.engines.partial import UnknownWeights
from infra.policy.engines.reply_stream import INTERVAL_TOKENS
from infra.policy.protocol import ANY, UnfitEngine
from infra.policy.weight_label import WeightLabel
from mainspring.errors import EngineError, EngineFailing, EngineUnreachable

GENERATE = "/inference/v1/generate"
LOADING = "loading"
"""Label of an engine that holds the weights of no version for sure."""
_OF_NO_VERSION = (LOADING, LENDING, LENT, TAKING, TAKEN)
LOAD_S = 60.0
"""A load that takes longer may have lost its process: who asks begins it again, or joins it."""
LOOK_S = 0.1
NO_LOGPROB = -9999.0
"""In the place of minus infinity, and of what is no number."""
_NAMES = {
    "max_new_tokens": "max_tokens",
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "stop_token_ids": "stop_token_ids",
    "sampling_seed": "seed",
    "stop": "stop",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "repetition_penalty": "repetition_penalty",
}
"""SGLang's names of sampling parameters, and vLLM's."""


class VllmDialect:
    hold: tuple[str, Json] = ("/pause?mode=abort", {})
    resume: tuple[str, Json] = ("/resume", {})

    def __init__(self, *, trained_at: float | None = None) -> None:
        """`trained_at`: the temperature at which replies are sampled that are trained on; None:
        none are."""
        self._trained_at = trained_at

    @property
    def memory(self) -> LendingRoutes:
        return LendingRoutes(
            end=self.hold,
            # With level 1 it would keep a copy of the old weights in the host's memory.
            give=("/sleep?level=2", {}),
            # Without tags it would generate at once, before it has weights.
            take=("/wake_up?tags=weights&tags=kv_cache", {}),
            is_lent=self._is_lent,
        )

    async def _is_lent(self, calls: Calls, engine: str) -> bool:
        (await self._facts(calls, engine)).check_sleeps(engine)
        return (await calls.call(engine, "GET", "/is_sleeping")).get("is_sleeping") is True

    async def info(self, calls: Calls, engine: str) -> Json:
        return {"weight_version": _version(await self._label(calls, engine))}

    async def ask(self, calls: Calls, engine: str, body: Json, *, streams: bool) -> EngineRequest:
        await self._facts(calls, engine)
        label = await self._label_of_a_version(calls, engine)
        request = _Request(label, body["sampling_params"]["max_new_tokens"])
        same = SameLabel(label, lambda: self._label(calls, engine))
        return EngineRequest(
            GENERATE,
            _body(body, streams=streams),
            Streaming.INCREMENTAL if streams else Streaming.NONE,
            request.read,
            same.stands,
            tells_versions=False,
        )

    async def load(self, calls: Calls, engine: str, model: Path, label: WeightLabel) -> None:
        facts = await self._facts(calls, engine)
        if facts.keeps_output_layer(model):
            raise UnfitEngine(
                f"policy engine {engine}: {keeps_old_output(model)}",
                remedy="train a copy with an output layer of its own (tie_word_embeddings = false "
                "and lm_head.weight), or serve with SGLang or `mainspring serve`",
            )
        name = uuid.uuid4().hex[:8]
        loading = f"{LOADING}.{name}"
        await self._rename(calls, engine, loading)
        if await self._label(calls, engine) != loading:
            raise EngineFailing(f"policy engine {engine}: another process loads weights into it")
        try:
            path = {"weights_path": str(model.absolute())}
            await calls.post(
                engine, "/collective_rpc", {"method": "reload_weights", "kwargs": path}
            )
        except EngineError as error:
            raise EngineFailing(
                f"policy engine {engine} could not load {model}, and holds broken weights now: "
                f"{error.message}",
                remedy=f"does its machine see that folder? Start {engine} again; it is asked for "
                "no tokens until it was started again or a load went well",
            ) from error
        cache = await calls.post(engine, "/reset_prefix_cache", {})
        if cache.get("success") is False:
            raise EngineFailing(f"policy engine {engine} kept its cache of the old weights")
        await self._rename(calls, engine, f"{label}.{name}")

    async def paused(self, http: httpx.AsyncClient, url: str) -> PausedEngine | None:
        answer = (await http.get(f"{url}/is_paused")).json()
        if answer.get("is_paused") is not True:
            return None
        return PausedEngine(url, None, None, self.resume[0])

    async def _label_of_a_version(self, calls: Calls, engine: str) -> str:
        """Waits for a load that is under way. Raises UnknownWeights where one failed or is left."""
        until = time.monotonic() + LOAD_S
        while _version(label := await self._label(calls, engine)) in _OF_NO_VERSION:
            held = (await calls.call(engine, "GET", "/is_paused")).get("is_paused") is True
            if not held or time.monotonic() > until:
                if self._trained_at is None:
                    raise EngineUnreachable(f"policy engine {engine} holds no weights for sure")
                raise UnknownWeights(engine, label, ANY)
            await asyncio.sleep(LOOK_S)
        return label

    async def _label(self, calls: Calls, engine: str) -> str:
        return str((await calls.call(engine, "GET", "/weight_info")).get("weight_version"))

    async def _rename(self, calls: Calls, engine: str, label: str) -> None:
        await calls.post(engine, "/update_weight_version", {"new_version": label})

    async def _facts(self, calls: Calls, engine: str) -> VllmFacts:
        facts: VllmFacts = await calls.fact(engine, "vllm", lambda: ask_facts(calls, engine))
        if self._trained_at is not None:
            facts.check_logprobs(engine, self._trained_at)
        return facts


def _version(label: str) -> str:
    """The version's label, without the name of its load."""
    return label.partition(".")[0]


def _body(body: Json, *, streams: bool) -> Json:
    given: Json = body["sampling_params"]
    if unknown := given.keys() - _NAMES.keys():
        raise EngineError(
            f"sampling parameters that vLLM would ignore: {', '.join(sorted(unknown))}"
        )
    params = {_NAMES[name]: value for name, value in given.items()}
    # Stop strings are looked for in the text; special tokens are a part of it.
    params |= {"logprobs": 0, "detokenize": "stop" in params, "skip_special_tokens": False}
    if streams:
        params["stream_interval"] = INTERVAL_TOKENS
    return {
        "request_id": body["rid"],
        "token_ids": body["input_ids"],
        "sampling_params": params,
        "stream": streams,
    }


@dataclass(slots=True)
class _Request:
    """Reads the answer to one request, or the events of its stream, in the common language."""

    label: str
    """Label that the engine had before it was asked."""
    max_tokens: int
    num_tokens: int = 0
    """Tokens that came."""
    asked_at: float = 0.0

    def __post_init__(self) -> None:
        self.asked_at = time.monotonic()

    def read(self, answer: Json) -> Json:
        [choice] = answer["choices"]
        ids = choice["token_ids"] or []
        entries = (choice.get("logprobs") or {"content": []})["content"]
        logprobs = [[float(entry["logprob"]), entry["token_id"], None] for entry in entries]
        if any(logprob <= NO_LOGPROB for logprob, _, _ in logprobs):
            raise ValueError("a log-prob that is no number")
        self.num_tokens += len(ids)
        finish = choice.get("finish_reason")
        if finish == "length" and self.num_tokens < self.max_tokens:
            raise EngineError(
                f"a policy engine ended a reply after {self.num_tokens} of {self.max_tokens} "
                "tokens, as its context is full",
                remedy="start vLLM with a longer --max-model-len, or lower policy.max_context",
            )
        spans = choice.get("weight_versions")
        if not spans:  # it tells them at the end of a stream alone, and with no token not at all
            spans = [{"version": self.label, "start": 0, "end": self.num_tokens}]
        spans = [span | {"version": _version(str(span["version"]))} for span in spans]
        return {
            "output_ids": ids,
            "meta_info": {
                "output_token_logprobs": logprobs,
                "finish_reason": finish and {"type": finish},
                "weight_versions": [span for span in spans if span["end"] > span["start"]],
                "weight_version": spans[-1]["version"],
                "e2e_latency": time.monotonic() - self.asked_at,
            },
        }
