"""Ask a running engine what it serves, before a campaign depends on it.

`check_engine` raises EngineError where no policy engine answers; what an engine serves is a report,
and a mismatch with what was expected is one sentence in it. Asks cheap routes only: `/health` of a
paused SGLang takes 20 s, `/model_info` answers at once. Imported by commands and workers.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
from pydantic import ValidationError

from infra.policy.engines.dialects.sglang import CPU_ENGINE
from infra.policy.engines.dialects.vllm import GENERATE, VllmDialect
from infra.policy.engines.dialects.vllm_facts import (
    PROCESSED,
    VllmFacts,
    ask_facts,
    keeps_old_output,
)
from infra.policy.engines.wire import Wire
from infra.policy.model.model_files import ModelFacts, read_facts, tokenizer_digest
from mainspring.artifacts.stamp import MachineStamp
from mainspring.errors import EngineError, ModelError
from mainspring.model_folder.config_file import sizes_of
from mainspring.status import PolicyApi

TIMEOUT_S = 10.0
VLLM_TIMEOUT_S = 60.0
"""vLLM's first answer about itself takes some 10 s on a busy machine."""
SGLANG_SPARE_TOKENS = 2
"""SGLang stops a reply this many tokens before its context length."""


@dataclass(frozen=True, slots=True)
class EngineReport:
    """Facts about what an engine serves; None where the engine does not tell."""

    url: str
    model_path: str
    model_type: str | None
    architectures: tuple[str, ...]
    vocab_size: int | None
    sizes: Mapping[str, int]
    """Figures of the model, as `ModelFacts.sizes` has them."""
    dtype: str | None
    """Precision that it computes in, as torch names it; asked for where one is expected."""
    context_length: int | None
    """Longest prompt plus reply that it serves in full."""
    weight_version: str
    paused: bool
    """It answers, and generates when it is continued."""
    reproducible: bool
    """Its replies do not depend on other requests: `mainspring serve --reproducible`."""
    stamp: MachineStamp | None
    """Facts that its bits depend on."""
    mismatch: str | None
    """One sentence on how it differs from what was expected; None when it fits."""


async def check_engine(
    url: str,
    *,
    api_key: str = "",
    model_dir: Path | None = None,
    max_context: int | None = None,
    adapter_rank: int = 0,
    dtype: str = "",
    api: PolicyApi = PolicyApi.SGLANG,
    trained_at: float | None = None,
) -> EngineReport:
    """Ask the engine at `url` in the way of `api`; compare it with a model directory, with the
    longest prompt plus reply that is asked for, with the adapters that it is to load (rank 0:
    none), with the precision that is expected of it, and with the temperature of replies that are
    trained on (None: none are). Raises EngineError when it does not answer as a policy engine, and
    ModelError when `model_dir` cannot be read."""
    url = url.rstrip("/")
    expected = None if model_dir is None else read_facts(model_dir)
    if api is PolicyApi.VLLM:
        report = await _ask_vllm(url, api_key)
        mismatch = _mismatch(report[0], expected, model_dir, max_context, dtype)
        if mismatch is None and trained_at is not None:
            mismatch = _untrainable(url, report[1], trained_at, model_dir)
        return replace(report[0], mismatch=mismatch)
    async with httpx.AsyncClient(
        headers={"Authorization": f"Bearer {api_key}"} if api_key else None,
        timeout=TIMEOUT_S,
        trust_env=False,  # engines are inside the cluster: never through a proxy
    ) as http:
        info = await _ask(http, url, "/model_info")
        if not ("model_path" in info and "weight_version" in info):
            raise _no_engine(url, "/model_info names no model_path and weight_version")
        bundled = info.get("engine") == CPU_ENGINE
        context_length = info.get("context_length")
        if not bundled:
            context_length = await _sglang_context_length(http, url)
        paused = (await _get(http, url, "/ready")).status_code == 503
        server = await _ask(http, url, "/server_info") if adapter_rank or dtype else {}
    served = _served_facts(Path(str(info["model_path"])))
    computes_in = server.get("dtype")
    report = EngineReport(
        url=url,
        model_path=str(info["model_path"]),
        model_type=info.get("model_type"),
        architectures=tuple(map(str, info.get("architectures") or ())),
        vocab_size=info.get("vocab_size", served and served.vocab_size),
        sizes=_sizes(info.get("sizes")) or (served.sizes if served else {}),
        dtype=computes_in if isinstance(computes_in, str) and computes_in != "auto" else None,
        context_length=context_length,
        weight_version=str(info["weight_version"]),
        paused=paused,
        reproducible=info.get("reproducible") is True,
        stamp=_stamp(info.get("stamp")),
        mismatch=None,
    )
    mismatch = _mismatch(report, expected, model_dir, max_context, dtype)
    if mismatch is None and model_dir is not None:
        mismatch = _other_tokens(report, info.get("tokenizer_digest"), model_dir)
    if mismatch is None and adapter_rank:
        mismatch = _takes_no_adapter(url, server, adapter_rank)
    return replace(report, mismatch=mismatch)


async def _ask_vllm(url: str, api_key: str) -> tuple[EngineReport, VllmFacts]:
    """One token is generated, as vLLM's /health is fine after its engine broke."""
    dialect = VllmDialect()
    wire = Wire(VLLM_TIMEOUT_S, api_key, dialect)
    try:
        facts = await ask_facts(wire, url)
        info = await dialect.info(wire, url)
        paused = (await wire.call(url, "GET", "/is_paused")).get("is_paused") is True
        if not paused:
            await wire.post(url, GENERATE, {"token_ids": [0], "sampling_params": {"max_tokens": 1}})
    finally:
        await wire.aclose()
    served = _served_facts(Path(facts.model_path))
    report = EngineReport(
        url=url,
        model_path=facts.model_path,
        model_type=served and served.model_type,
        architectures=served.architectures if served else (),
        vocab_size=served and served.vocab_size,
        sizes=served.sizes if served else {},
        dtype=facts.dtype,
        context_length=facts.context_length,
        weight_version=str(info["weight_version"]),
        paused=paused,
        reproducible=False,
        stamp=None,
        mismatch=None,
    )
    return report, facts


def _untrainable(
    url: str, facts: VllmFacts, temperature: float, model_dir: Path | None
) -> str | None:
    if reason := facts.raw_logprobs(temperature):
        return f"policy engine {url}: {reason}: start it with --logprobs-mode {PROCESSED}"
    if model_dir is not None and facts.keeps_output_layer(model_dir):
        return f"policy engine {url}: {keeps_old_output(model_dir)}"
    return None


def _mismatch(
    report: EngineReport,
    expected: ModelFacts | None,
    model_dir: Path | None,
    max_context: int | None,
    dtype: str,
) -> str | None:
    engine = f"policy engine {report.url} (model {report.model_path})"
    if expected is not None:
        served = report.architectures or (report.model_type,)
        needed = expected.architectures if report.architectures else (expected.model_type,)
        if needed and served != (None,) and served != needed:
            return f"{engine} serves {served[0]}, {model_dir} is {needed[0]}"
        if report.vocab_size and expected.vocab_size and report.vocab_size != expected.vocab_size:
            return (
                f"{engine} serves a vocabulary of {report.vocab_size} tokens, {model_dir} has "
                f"{expected.vocab_size}"
            )
        for name, size in report.sizes.items():
            if expected.sizes.get(name, size) != size:
                return (
                    f"{engine} serves another model: {name} is {size}, {model_dir} has "
                    f"{expected.sizes[name]}"
                )
    if max_context and report.context_length and report.context_length < max_context:
        return (
            f"{engine} serves a prompt plus reply of {report.context_length} tokens, "
            f"policy.max_context is {max_context}: start it with a longer --context-length or "
            "lower policy.max_context"
        )
    if dtype and report.dtype not in (None, dtype):
        return (
            f"{engine} computes in {report.dtype}, and policy.dtype is {dtype}: start it with that "
            "precision"
        )
    return None


def _other_tokens(report: EngineReport, digest: object, model_dir: Path) -> str | None:
    """In words, where the engine's tokenizer is known to be another one."""
    own = tokenizer_digest(model_dir)
    served = digest if isinstance(digest, str) else tokenizer_digest(Path(report.model_path))
    if not (own and served) or own == served:
        return None
    return (
        f"policy engine {report.url} (model {report.model_path}) has another tokenizer than "
        f"{model_dir}: their tokenizer.json differ"
    )


def _takes_no_adapter(url: str, server: dict[str, Any], rank: int) -> str | None:
    largest = server.get("max_lora_rank")
    if server.get("enable_lora") and (largest is None or largest >= rank):
        return None
    limit = f"takes adapters of rank {largest} or less" if largest else "takes no adapters"
    arguments = " ".join(adapter_arguments(rank))
    return (
        f'policy engine {url} {limit}, and policy.publish = "adapter" loads those of rank {rank}: '
        f"start SGLang with {arguments}"
    )


def adapter_arguments(rank: int) -> list[str]:
    """SGLang's, so that it takes adapters at run time."""
    # Not "all": for a tied model SGLang then makes an output layer of its own.
    targets = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    return ["--enable-lora", "--max-lora-rank", str(rank), "--lora-target-modules", *targets]


def _stamp(raw: object) -> MachineStamp | None:
    try:
        return MachineStamp.model_validate(raw)
    except ValidationError:  # another version's, or none
        return None


async def _sglang_context_length(http: httpx.AsyncClient, url: str) -> int | None:
    """Context length in its OpenAI-compatible list of models, less what it keeps for itself."""
    answer = await _get(http, url, "/v1/models")
    try:
        length = answer.json()["data"][0]["max_model_len"]
    except (ValueError, KeyError, IndexError, TypeError):
        return None
    return length - SGLANG_SPARE_TOKENS if isinstance(length, int) else None


def _served_facts(served: Path) -> ModelFacts | None:
    """Facts in its model's folder, where this machine can read it: SGLang and vLLM tell less."""
    try:
        return read_facts(served)
    except ModelError:
        return None


def _sizes(raw: object) -> dict[str, int]:
    return sizes_of(raw) if isinstance(raw, dict) else {}


async def _ask(http: httpx.AsyncClient, url: str, path: str) -> dict[str, Any]:
    answer = await _get(http, url, path)
    if answer.status_code == 401:
        raise EngineError(
            f"policy engine {url} refuses the API key",
            remedy="put the key it was started with (--api-key) into MAINSPRING_POLICY_API_KEY",
        )
    if answer.status_code != 200:
        raise _no_engine(url, f"{path} answers HTTP {answer.status_code}")
    try:
        content = answer.json()
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise _no_engine(url, f"{path} answers no JSON object")
    return content


async def _get(http: httpx.AsyncClient, url: str, path: str) -> httpx.Response:
    try:
        return await http.get(url + path)
    except httpx.HTTPError as error:
        raise EngineError(
            f"policy engine {url} does not answer: {type(error).__name__} {error}",
            remedy="start it with `mainspring serve --model DIR`, or correct policy.engines",
        ) from error


def _no_engine(url: str, problem: str) -> EngineError:
    return EngineError(
        f"{url} is not a policy engine: {problem}",
        remedy="expected SGLang 0.5.23 or later, or `mainspring serve`, each engine by its own "
        "address (a router hides them); an OpenAI-compatible endpoint needs policy.api = "
        '"openai" (--api openai)',
    )
