"""The next request to the policy in a rollout that an agent plays, and what it may continue.

Invariants: pure; the same record gives the same request, so every attempt asks the same. What an
agent asks is checked here: a request that cannot be one is AgentBroken, which ends the campaign
with one sentence. A turn costs what is new in it: the request of the turn before is continued, and
all are followed from the first call on only where it is not at hand.
"""

from dataclasses import dataclass, replace

from mainspring.agents.protocol import Agent, FormatError, commands_in
from mainspring.agents.record import Record
from mainspring.errors import ConfigError, MainspringError
from mainspring.programs.matching import Chained, StoredCall, chain, continued
from mainspring.programs.request import ModelRequest
from mainspring.tasks.task import Task
from mainspring.trajectories.turns import Call, Execution


class AgentBroken(ConfigError):
    """An agent of one's own asks what no policy can be asked."""


@dataclass(frozen=True, slots=True)
class NextRequest(Chained):
    """Request to the policy after the calls of a record."""

    stored: tuple[StoredCall, ...] = ()
    """These calls, which it may continue."""
    whole: ModelRequest | None = None
    """The agent's own request, where the context was rewritten for this one or one before it."""
    num_summaries: int = 0
    """Number of the stored calls that are summaries."""

    @property
    def of_agent(self) -> ModelRequest:
        return self.request if self.whole is None else self.whole

    def rewritten(self, request: ModelRequest) -> "NextRequest":
        """`request` in the place of this one: turns that follow are added to it."""
        return NextRequest(request, chain(request), self.stored, self.of_agent, self.num_summaries)

    def summed_up(self, call: Call) -> "NextRequest":
        """After a summary, which is a branch of its own: the same request is still to be asked."""
        assert call.rewritten is not None, "a summary is stored with what asked for it"
        history = continued(chain(call.rewritten)[-1], call.reply)
        return replace(
            self,
            stored=(*self.stored, StoredCall(call, history)),
            num_summaries=self.num_summaries + 1,
        )


def next_request(
    agent: Agent, task: Task, record: Record, newest: NextRequest | None = None
) -> NextRequest:
    """Request that follows the record. `newest`: what followed an earlier one of the same rollout.
    Raises AgentBroken."""
    if newest is None:
        first = _checked(agent, task, record.before(0))
        newest = NextRequest(first, chain(first))
    seen = record.without_summaries()
    while len(newest.stored) < len(record.calls):
        call = record.calls[len(newest.stored)]
        if call.is_summary:
            newest = newest.summed_up(call)
            continue
        if call.rewritten is not None and call.rewritten != newest.request:
            newest = newest.rewritten(call.rewritten)
        history = continued(newest.digests[-1], call.reply)
        stored = (*newest.stored, StoredCall(call, history))
        num_seen = len(stored) - newest.num_summaries
        whole = _checked(agent, task, seen.before(num_seen, newest.of_agent))
        is_added = newest.whole is not None and agent.appends
        request = _added(newest, whole) if is_added else whole
        digests = chain(request, after=newest)
        place = len(newest.request.messages)
        if agent.appends and (len(digests) <= place or digests[place] != history):
            raise AgentBroken(
                f"{_place(agent, task, len(stored))} does not begin with the request before it and "
                "its reply, and the agent declares that it appends",
                remedy="set `appends = False` in its class if it rewrites what was said: see "
                "docs/extending.md",
            )
        newest = NextRequest(
            request, digests, stored, whole if is_added else None, newest.num_summaries
        )
    return newest


def _added(before: NextRequest, whole: ModelRequest) -> ModelRequest:
    """The messages that the agent's request has beyond its last one, after what was asked in its
    place."""
    new = whole.messages[len(before.of_agent.messages) :]
    return whole.model_copy(update={"messages": (*before.request.messages, *new)})


def check_asking(agent: Agent, task: Task) -> None:
    """Ask as in the first two turns of a rollout, with an empty reply between them. Raises
    AgentBroken, and ConfigError for a task that the agent cannot play."""
    call = Call(0, None, 0, (), (), (), (), text="", finish_reason="stop")
    try:
        parsed = commands_in(agent, call.reply)
        commands = () if isinstance(parsed, FormatError) else parsed
        ran = [
            Execution(0, index, command.command, 0, b"", False, False, 0.0)
            for index, command in enumerate(commands)
        ]
        next_request(agent, task, Record((call,), ran))
    except MainspringError:
        raise
    except Exception as error:
        raise AgentBroken(
            f"agent {type(agent).__name__}, task {task.id}: {type(error).__name__}: {error}",
            remedy="it was asked for its first two requests, with an empty reply between them: see "
            "docs/extending.md",
        ) from error


def _checked(agent: Agent, task: Task, record: Record) -> ModelRequest:
    """Raises AgentBroken for what no policy can be asked."""
    request = agent.request(task, record)
    if isinstance(request, ModelRequest) and request.messages and not request.tools:
        return request
    where, remedy = _place(agent, task, len(record.calls)), "see docs/extending.md"
    if not isinstance(request, ModelRequest):
        raise AgentBroken(
            f"{where} is a {type(request).__name__}, expected a ModelRequest", remedy=remedy
        )
    if not request.messages:
        raise AgentBroken(f"{where} has no messages", remedy=remedy)
    names = [tool.name for tool in request.tools]
    if len({*names}) < len(names):
        listed = ", ".join(names)
        raise AgentBroken(f"{where} offers two tools of one name: {listed}", remedy=remedy)
    if unknown := {*names} - {tool.name for tool in agent.tools}:
        raise AgentBroken(
            f"{where} offers the tool {min(unknown)!r}, which is not among the agent's tools",
            remedy="name every tool that its requests may offer in `tools` of its class: "
            "see docs/extending.md",
        )
    return request


def _place(agent: Agent, task: Task, num_calls: int) -> str:
    return f"agent {type(agent).__name__}, task {task.id}: its request after {num_calls} calls"
