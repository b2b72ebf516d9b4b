"""The bodies of the engine's routes, as SGLang has them. Imported by `engine.app` alone."""

from pathlib import Path
from typing import Any

from pydantic import BaseModel

from engine.scheduler import PauseMode


class GenerateBody(BaseModel):
    """Unknown keys are accepted and ignored, as SGLang does."""

    input_ids: list[int] | list[list[int]] | None = None
    text: str | list[str] | None = None
    sampling_params: dict[str, Any] | list[dict[str, Any]] | None = None
    rid: str | list[str] | None = None
    return_logprob: bool = False
    logprob_start_len: int = -1
    top_logprobs_num: int = 0
    stream: bool = False


class PauseBody(BaseModel):
    mode: PauseMode = PauseMode.ABORT


class UpdateBody(BaseModel):
    model_path: Path
    weight_version: str | None = None
    flush_cache: bool = True
    abort_all_requests: bool = False


class VersionBody(BaseModel):
    new_version: str
    abort_all_requests: bool = True


class AbortBody(BaseModel):
    rid: str = ""
    abort_all: bool = False
