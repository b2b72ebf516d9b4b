"""The tools of one rollout that run in Python: the program of their process.

Invariants: each tool is created before its first call and released at the end; calls are answered
one after the other. It asks its node for the next call as a function asks for a command, with what
came of the one before. Named by `tool_process`, which starts it.
"""

import contextlib
import json
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from mainspring.agents.tools.choice import tool_of
from mainspring.agents.tools.protocol import Misused, arguments_of
from mainspring.agents.tools.python import PythonTool
from mainspring.environments.protocol import WorldLost
from mainspring.errors import ConfigError
from mainspring.ids import RolloutId
from mainspring.programs.functions import FunctionSandbox
from mainspring.programs.request import ToolCall
from mainspring.tasks.any_task import AnyTask
from mainspring.words.causes import cause_of

PATH = f"{__name__}:serve"


class CallEnd(StrEnum):
    """How a call ended."""

    ANSWERED = "answered"
    """With the output that the policy is told."""
    MISUSED = "misused"
    """The tool cannot take the arguments: the policy is told why."""
    LOST = "lost"
    """The calls of the rollout are to run again in another process."""
    BROKEN = "broken"
    """The tool is at fault, and the campaign cannot continue with it."""


async def serve(
    task: AnyTask, sandbox: FunctionSandbox, options: Mapping[str, Any], rollout: str
) -> None:
    """`options`: "tools", the paths of the tools by the names that the policy calls, and
    "output_bytes", what is kept of an output."""
    # Here, as its module may load for seconds, which no call's time limit has to hold.
    for path in options["tools"].values():
        with contextlib.suppress(ConfigError):  # told by the call of it
            tool_of(path)
    tools: dict[str, PythonTool] = {}
    said: dict[str, Any] = {}
    while True:
        asked = json.loads((await sandbox.run(json.dumps(said))).output)
        if not asked:
            break
        call = ToolCall.model_validate(asked)
        outcome, text = await _outcome(tools, call, options["tools"][call.name], task, rollout)
        output = text.encode(errors="replace")
        kept = output[: options["output_bytes"]]
        said = {
            "outcome": outcome,
            "text": kept.decode(errors="replace"),
            "truncated": len(kept) < len(output),
        }
    for tool in tools.values():
        await tool.release()


async def _outcome(
    tools: dict[str, PythonTool], call: ToolCall, path: str, task: AnyTask, rollout: str
) -> tuple[CallEnd, str]:
    step = "create"
    try:
        if call.name not in tools:
            tool: Any = tool_of(path)
            await tool.create(task, RolloutId(rollout))
            tools[call.name] = tool
        step = "execute"
        tool = tools[call.name]
        answer = await tool.execute(arguments_of(tool.spec, call))
    except Misused as misused:
        return CallEnd.MISUSED, str(misused)
    except WorldLost as lost:
        return CallEnd.LOST, lost.message
    except ConfigError as error:
        return CallEnd.BROKEN, error.message
    except Exception as error:
        return CallEnd.BROKEN, f"{step} raised {cause_of(error)}"
    if not isinstance(answer, str):
        return CallEnd.BROKEN, f"execute gave a {type(answer).__name__}, expected str"
    return CallEnd.ANSWERED, answer
