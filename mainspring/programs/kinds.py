"""Which branch a program's request belongs to: the agent's own, a sub-agent's, or a side matter.

Pure. The store compares settings: the first request that is no sub-agent's and no side matter has
the agent's own; what has another one is a sub-agent's.
"""

import hashlib
import json

from mainspring.programs.record import BranchKind
from mainspring.programs.request import ModelRequest, Role


def kind_of(request: ModelRequest, *, offers_tools: bool) -> BranchKind:
    """MAIN as far as the request alone tells. `offers_tools`: of the client's own turns."""
    if offers_tools and not request.tools:
        return BranchKind.SIDE
    return BranchKind.AGENT if request.is_subagent else BranchKind.MAIN


def setting_of(request: ModelRequest) -> str:
    """Digest of the instructions that a conversation begins with, and of the names of its tools."""
    first: list[str] = []
    for message in request.messages:
        if message.role is not Role.SYSTEM:
            break
        first.append(message.text.strip())
    text = json.dumps([first, sorted(tool.name for tool in request.tools)])
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
