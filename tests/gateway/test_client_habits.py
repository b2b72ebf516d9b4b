"""What installed clients do beside the plain case: titles, sub-agents, cut replies, compaction.

`make agents` installs them; those that are missing are skipped.
"""

import asyncio
import dataclasses
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from installed_clients import FIX, TEST, Policy, arguments, played, shell_of, usual_reply
from scripted_answers import calling

from gateway.protocol import ProgramPromptTooLong, Session
from gateway.server import Address
from infra.sandbox.bubblewrap.backend import BwrapBackend
from mainspring.config.agents.agent import AgentConfig
from mainspring.programs.matching import key_of
from mainspring.programs.profiles.choice import profile_for
from mainspring.programs.record import BranchKind
from mainspring.programs.reply import Answer, Reply
from mainspring.programs.request import ModelRequest, Role

pytestmark = pytest.mark.timeout(900)
FIXED = b"+    return a + b"
CODEX = AgentConfig(kind="codex")
CLAUDE_CODE = AgentConfig(kind="claude-code")
OPENCODE = AgentConfig(kind="opencode")
DEEPER = "Go deeper."
DEEPEST = "Fix it now."


class CutOnce(Policy):
    """The first reply of the agent itself is cut by its length, within a call that is whole."""

    num_cut = 0

    def reply(self, request: ModelRequest) -> Reply:
        reply = usual_reply(request)
        if self.num_cut or shell_of(request) is None:
            return reply
        self.num_cut += 1
        return reply.model_copy(update={"is_cut": True, "text": "I look at"})


@pytest.mark.parametrize("agent", [CODEX, CLAUDE_CODE, OPENCODE], ids=lambda agent: agent.kind)
async def test_a_reply_that_was_cut_by_its_length_is_outlived(
    backend: BwrapBackend, agent: AgentConfig
) -> None:
    ran = await played(backend, agent, policy=CutOnce())
    said = ran.ended.output.decode(errors="replace")[-2000:]
    assert FIXED in ran.patch, said
    assert ran.ended.returncode == 0, said
    assert "passed 42" in ran.policy.seen


class Nested(Policy):
    """The agent starts a sub-agent, which starts another one, which fixes the bug."""

    def reply(self, request: ModelRequest) -> Reply:
        starts = next((tool.name for tool in request.tools if tool.name in ("Agent", "Task")), None)
        shell = shell_of(request)
        if shell is None:
            return Reply(text="A title")
        results = [message for message in request.messages if message.role is Role.TOOL]
        asked = "\n".join(m.text for m in request.messages if m.role is Role.USER)
        if DEEPEST in asked:
            commands = [FIX, TEST]
            if len(results) < len(commands):
                return calling(shell.name, json.dumps(arguments(shell, commands[len(results)])))
            return Reply(text="The deepest is done.")
        if results or starts is None:
            return Reply(text="Done.")
        prompt = DEEPEST if DEEPER in asked else DEEPER
        given = {"description": "Fix it", "prompt": prompt, "subagent_type": "general-purpose"}
        # In the background it would end after its parent.
        given |= {"run_in_background": False}
        return calling(starts, json.dumps(given))


async def test_sub_agents_of_claude_code_are_told_apart(backend: BwrapBackend) -> None:
    ran = await played(backend, CLAUDE_CODE, policy=Nested())
    said = ran.ended.output.decode(errors="replace")[-2000:]
    assert FIXED in ran.patch and ran.ended.returncode == 0, said
    kinds = ran.policy.kinds()
    # Two requests of the agent, two of its sub-agent, three of that one's own.
    assert (kinds.count(BranchKind.MAIN), kinds.count(BranchKind.AGENT)) == (2, 5), kinds
    assert kinds[0] is kinds[-1] is BranchKind.MAIN
    assert "The deepest is done." in ran.policy.seen


@asynccontextmanager
async def cutting_once(gateway: Address) -> AsyncIterator[Address]:
    """The first streamed reply is cut within its events; all else passes."""
    to_cut = [b"content_block_start"]

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while chunk := await reader.read(65536):
            if to_cut and to_cut[0] in chunk:
                end = chunk.index(to_cut.pop())
                writer.write(chunk[:end])
                break
            writer.write(chunk)
            await writer.drain()
        writer.close()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, onward = await asyncio.open_connection(gateway.host, gateway.port)
        both = relay(reader, onward), relay(there, writer)
        await asyncio.gather(*both, return_exceptions=True)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    async with server:
        host, port = server.sockets[0].getsockname()
        yield dataclasses.replace(gateway, host=host, port=port)
    assert not to_cut


async def test_claude_code_asks_the_same_again_without_a_stream(backend: BwrapBackend) -> None:
    noise = profile_for(CLAUDE_CODE).noise
    ran = await played(backend, CLAUDE_CODE, between=cutting_once)
    said = ran.ended.output.decode(errors="replace")[-2000:]
    assert FIXED in ran.patch and ran.ended.returncode == 0, said
    keys = [key_of(request, noise) for _, request, _ in ran.policy.asked]
    # The request whose answer was cut was asked twice, and both have one key.
    assert len(keys) == len(set(keys)) + 1, keys


async def test_titles_are_told_apart_from_the_agents_own_turns(backend: BwrapBackend) -> None:
    ran = await played(backend, OPENCODE)
    kinds = ran.policy.kinds()
    assert (kinds.count(BranchKind.SIDE), kinds.count(BranchKind.MAIN)) == (1, 3), kinds


class Full(Policy):
    """The second turn's prompt is too long; what is shorter, is answered."""

    num_refused = 0

    async def ask(self, session: Session, request: ModelRequest, *, is_retry: bool) -> Answer:
        if shell_of(request) and len(request.messages) > 3 and not self.num_refused:
            self.num_refused += 1
            self.replies.append(ProgramPromptTooLong(40_000, 32_768))
        return await super().ask(session, request, is_retry=is_retry)


async def test_opencode_compacts_and_fixes_the_bug(backend: BwrapBackend) -> None:
    policy = Full()
    ran = await played(backend, OPENCODE, policy=policy)
    said = ran.ended.output.decode(errors="replace")[-2000:]
    assert policy.num_refused == 1 and FIXED in ran.patch, said
    # The title, and the summary of what was said before.
    assert ran.policy.kinds().count(BranchKind.SIDE) >= 2, ran.policy.kinds()
