"""The harness of seats whose environment brings none: it asks the model until it calls no tool.

Invariants: it runs in the service's process, starts no program and needs no network but the
loopback; the only tools are those of the environment's tool servers. Loaded by verifiers, by the
name of its module, as `current` sets it.
"""
# pyright: reportMissingImports=false

import json
from contextlib import AsyncExitStack
from typing import Any

import httpx
import verifiers.v1 as vf
from verifiers.v1.dialects.chat import message_to_wire
from verifiers.v1.harnesses.utils.mcp import call_mcp, connect_mcp
from verifiers.v1.runtimes import ProgramResult

__all__ = ["ChatLoop"]


class ChatLoop(vf.Harness[vf.HarnessConfig]):
    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_MCP = True
    SUPPORTS_RESUME = True
    SUPPORTS_TOOL_INTERCEPTION = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: Any,
        trace: Any,
        runtime: Any,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: Any,
        tool_interception_url: str | None = None,
    ) -> ProgramResult:
        system_prompt, prompt = self.resolve_prompt(data)
        messages = [{"role": "system", "content": system_prompt}] if system_prompt else []
        if isinstance(prompt, str):
            messages.append({"role": "user", "content": prompt})
        else:
            messages += [message_to_wire(each) for each in prompt or ()]
        timeout_s = self.config.tool_timeout
        servers = {name: {"url": url, "timeout": timeout_s} for name, url in mcp_urls.items()}
        head = {"Authorization": f"Bearer {secret}"}
        async with (
            AsyncExitStack() as stack,
            httpx.AsyncClient(timeout=None, trust_env=False, headers=head) as http,
        ):
            tools, dispatch, clients = await connect_mcp({"mcpServers": servers}, stack)
            while True:
                asked = {"model": ctx.model, "messages": messages}
                if tools:
                    asked["tools"] = tools
                answer = await http.post(f"{endpoint}/chat/completions", json=asked)
                if answer.status_code != 200:
                    return ProgramResult(1, "", f"HTTP {answer.status_code}: {answer.text}")
                [choice] = answer.json()["choices"]
                message = choice["message"]
                messages.append(message)
                if not message.get("tool_calls"):
                    return ProgramResult(0, "", "")
                for call in message["tool_calls"]:
                    denied = await _denied(http, tool_interception_url, call)
                    messages.append(denied or await _called(call, clients, dispatch))


async def _denied(http: httpx.AsyncClient, url: str | None, call: Any) -> dict[str, Any] | None:
    """Answer of the environment's hooks in the tool's place; None: the tool is called."""
    if url is None:
        return None
    function = call["function"]
    arguments = json.loads(function["arguments"])
    asked = {"tool_call_id": call["id"], "name": function["name"], "arguments": arguments}
    answer = await http.post(url, json=asked)
    answer.raise_for_status()
    decision = answer.json()
    if decision["action"] == "stop":
        raise RuntimeError(decision["reason"])
    return decision["message"] if decision["action"] == "deny" else None


async def _called(call: Any, clients: Any, dispatch: Any) -> dict[str, Any]:
    name, arguments = call["function"]["name"], json.loads(call["function"]["arguments"])
    if name in dispatch:
        content = await call_mcp(clients, dispatch, name, arguments)
    else:
        content = f"error: there is no tool {name!r}; there are: {', '.join(dispatch)}"
    return {"role": "tool", "tool_call_id": call["id"], "name": name, "content": content}
