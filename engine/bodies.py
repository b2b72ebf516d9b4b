"""The bodies of the engine's routes, as SGLang has them. Imported by the routes' files alone."""

from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import Request

from engine.scheduler import MemoryTag, PauseMode
from engine.sequences import SchemaViolation

Body = TypeVar("Body", bound=BaseModel)


class GenerateBody(BaseModel):
    """Unknown keys are accepted and ignored, as SGLang does."""

    input_ids: list[int] | list[list[int]] | None = None
    text: str | list[str] | None = None
    sampling_params: dict[str, Any] | list[dict[str, Any]] | None = None
    rid: str | list[str] | None = None
    lora_path: str | list[str | None] | None = None
    """Name of a loaded adapter, for all prompts or for each."""
    return_logprob: bool = False
    logprob_start_len: int = -1
    top_logprobs_num: int = 0
    stream: bool = False


class PauseBody(BaseModel):
    mode: PauseMode = PauseMode.ABORT


class MemoryBody(BaseModel):
    tags: frozenset[MemoryTag] | None = None
    """None or empty: all."""

    @property
    def parts(self) -> frozenset[MemoryTag]:
        return self.tags or frozenset(MemoryTag)


class UpdateBody(BaseModel):
    model_path: Path
    weight_version: str | None = None
    flush_cache: bool = True
    abort_all_requests: bool = False


class VersionBody(BaseModel):
    new_version: str
    abort_all_requests: bool = True


class LoadAdapterBody(BaseModel):
    lora_name: str
    lora_path: Path
    """PEFT's folder."""


class UnloadAdapterBody(BaseModel):
    lora_name: str


class AbortBody(BaseModel):
    rid: str = ""
    abort_all: bool = False


class JoinBody(BaseModel):
    master_address: str
    master_port: int
    rank_offset: int
    world_size: int
    group_name: str = "weight_update_group"
    backend: str = "nccl"


class LeaveBody(BaseModel):
    group_name: str = "weight_update_group"


class BeginBody(BaseModel):
    """SGLang's `selector` has one meaning here: there is no draft model."""


class BucketBody(BaseModel):
    names: list[str]
    dtypes: list[str]
    shapes: list[list[int]]
    group_name: str = "weight_update_group"
    weight_version: str | None = None


class EndBody(BaseModel):
    pass


async def parse(request: Request, model: type[Body]) -> Body:
    try:
        return model.model_validate_json(await request.body() or b"{}")
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise SchemaViolation(f"{where}: {first['msg']}" if where else first["msg"]) from None
