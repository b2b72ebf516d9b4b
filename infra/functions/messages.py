"""Messages between a node and the process of a function: one JSON object a line, over a socket.

Pure. Imported by both sides: `process` in the node, and `child`.
"""

import base64
import json
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict

from mainspring.programs.functions import Returned

LINE_BYTES = 32 << 20
"""Size of one message: a task's files, a command's output, or a result."""


class Start(BaseModel):
    """The node's first message."""

    model_config = ConfigDict(frozen=True)

    path: str
    """Path of the function, as "package.module:name"."""
    task: dict[str, Any]
    model_url: str
    key: str
    options: dict[str, Any]
    rollout: str
    life: int
    has_sandbox: bool
    memory_mb: int


def line(fields: Mapping[str, Any]) -> bytes:
    # Escaped: a text may hold what no encoding has.
    return json.dumps(fields).encode() + b"\n"


def of_result(result: Returned) -> dict[str, Any]:
    data = base64.b64encode(result.data).decode()
    return {"returned": data, "type": result.type, "is_number": result.is_number}


def result_in(fields: Mapping[str, Any]) -> Returned:
    return Returned(base64.b64decode(fields["returned"]), fields["type"], fields["is_number"])
