"""One run, several agents, programs among them: each task is played by the one that it asks for."""

from pathlib import Path

import httpx
import pytest
from function_rollouts import function
from mixed_rollouts import COUNTED, Mixed, make, says
from outside import Outside, remote, work
from players import Play, Player
from program_checks import Hold, make_bundle, replays
from program_cluster import ProgramCluster, own_program
from victims import SCENES, Place

from cli.operations.checks.task_checks import as_played
from cli.operations.machine.embedded_stack import StackInfo
from cli.operations.machine.fleet import gateway_members
from cli.operations.runs import session_keys
from cli.rollout.rollout_screen import print_one
from infra.db.nodes import sandboxes
from infra.db.programs import model_requests, program_lives
from infra.db.rollouts import turns
from infra.db.runs import campaigns
from infra.db.training.batches import load_groups
from mainspring.config.any_run import training
from mainspring.config.settings import Settings
from mainspring.errors import UsageError
from mainspring.programs.record import RequestState
from mainspring.status import SandboxStatus, StopReason
from mainspring.trajectories.samples import samples_of
from reports import one_rollout
from reports.collect import collect
from reports.summary import summary
from tests.conftest import Standing
from tests.waiting import until

CODER = {**own_program(), "train": ["main"]}
SHORT = {**own_program(), "step_limit": 2, "train": ["side"]}
PLAYER = {**function("count", num_calls=3), "tool_parser": "hermes"}


async def test_each_task_is_played_by_the_agent_that_its_row_asks_for(
    programs: ProgramCluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("MAINSPRING_AGENTS_DIR", str(tmp_path))
    bundle = make_bundle(tmp_path, 'exec python3 "$(dirname "$0")/agent.py" "$(cat "$TASK_FILE")"')
    programs.engine.say = says
    db = programs.workers.db
    # The last one has no section: the row asks for a program by its kind.
    asked = (None, "coder", "short", "player", "langgraph")
    agents = {"coder": CODER, "short": SHORT, "player": PLAYER}
    mixed = await make(programs, {"kind": "bash"}, agents, asked, of_games=("player",))
    results = await mixed.play(programs)
    ends = {name: (each.stop_reason, each.reward, each.num_turns) for name, each in results.items()}
    assert ends == {
        None: (StopReason.SUBMITTED, 1.0, 3),
        "coder": (StopReason.EXITED, 1.0, 3),
        "short": (StopReason.STEP_LIMIT, 1.0, 2),
        "player": (StopReason.EXITED, float(COUNTED[-1]), 3),
        "langgraph": (StopReason.EXITED, 1.0, 3),
    }
    for name, rollout in mixed.rollouts.items():
        is_bash = name is None
        calls, executions = await turns.history(db, rollout, 0)
        assert [call.parent for call in calls] == [None, 0, 1][: len(calls)]
        assert bool(executions) == is_bash
        requests = await model_requests.history(db, rollout, 0)
        answered = [each.number for each in requests if each.state is RequestState.STORED]
        assert answered == ([] if is_bash else [call.number for call in calls])
        lives = await program_lives.of_rollout(db, rollout, 0)
        expected = bundle.sha256 if name == "langgraph" else None
        assert [life.bundle_sha256 for life in lives] == [] if is_bash else [expected]
        view = await one_rollout.read(db, rollout)
        assert view.agent == view.as_dict()["agent"] == (name or "bash")
        assert view.program is None if is_bash else view.program is not None
        await replays(programs.workers, rollout)
    data = await collect(db, mixed.campaign)
    figures = {
        each.agent: (each.num_rollouts, each.num_scored, each.turns_mean) for each in data.agents
    }
    assert figures == {
        "bash": (1, 1, 3.0),
        "coder": (1, 1, 3.0),
        "langgraph": (1, 1, 3.0),
        "player": (1, 1, 3.0),
        "short": (1, 1, 2.0),
    }
    assert set(summary(data)["agents"]) == set(figures)
    print_one(await one_rollout.read(db, mixed.rollouts["short"]), only_turn=None)
    shown = capsys.readouterr().out
    assert "agent      short" in shown and "program    command: 2 calls" in shown


async def test_samples_of_each_are_those_that_a_run_of_its_own_would_have(
    programs: ProgramCluster,
) -> None:
    programs.engine.say = says
    db = programs.workers.db
    agents = {"coder": CODER, "short": SHORT}
    together = await make(programs, {"kind": "bash"}, agents, (None, "coder", "short"))
    await together.play(programs)
    trained = await samples(programs, together)
    assert trained["short"] == []  # it trains branches of titles and summaries, and had none
    for name, agent in ((None, {"kind": "bash"}), ("coder", CODER)):
        alone = await make(programs, agent, {}, (None,))
        await alone.play(programs)
        assert trained[name] == (await samples(programs, alone))[None] != []
    # What the engine consumed is what the trainer gets: of a program as its template renders it.
    calls, _ = await turns.history(db, together.rollouts["coder"], 0)
    assert tuple(calls[0].prompt_ids) in programs.engine.asked


async def test_a_set_has_an_agent_for_its_tasks_that_ask_for_none(programs: ProgramCluster) -> None:
    programs.engine.say = says
    agents, asked = {"coder": CODER, "short": SHORT}, (None, "coder")
    mixed = await make(programs, {"kind": "bash"}, agents, asked, by_set="short")
    await mixed.play(programs)
    trained = await samples(programs, mixed)
    assert trained[None] == []  # "short" trains branches of titles and summaries, and had none
    assert trained["coder"] != []
    db = programs.workers.db
    assert (await one_rollout.read(db, mixed.rollouts[None])).agent == "short"
    played = {each.agent for each in (await collect(db, mixed.campaign)).agents}
    assert played == {"coder", "short"}


async def samples(programs: ProgramCluster, mixed: Mixed) -> dict[str | None, list[list[int]]]:
    """Tokens of each sample that is trained."""
    found: dict[str | None, list[list[int]]] = {}
    for asked, group in mixed.groups.items():
        [stored] = await load_groups(programs.workers.db, [group])
        [played] = stored.rollouts
        found[asked] = [
            [*sample.token_ids.tolist(), -1, *sample.action_mask.tolist()]
            for sample in samples_of(mixed.rollouts[asked], played.calls, trained=played.trained)
            if sample.num_action_tokens
        ]
    return found


async def test_a_program_in_agent_leaves_other_tasks_to_the_agents_that_they_ask_for(
    programs: ProgramCluster,
) -> None:
    programs.engine.say = says
    agents = {"brief": {"kind": "bash", "step_limit": 2}}
    mixed = await make(programs, CODER, agents, (None, "bash", "brief"))
    results = await mixed.play(programs)
    assert {name: each.stop_reason for name, each in results.items()} == {
        None: StopReason.EXITED,
        "bash": StopReason.SUBMITTED,
        "brief": StopReason.STEP_LIMIT,
    }
    data = await collect(programs.workers.db, mixed.campaign)
    assert [each.agent for each in data.agents] == ["bash", "brief", "command"]


async def test_override_plays_every_task_with_agent(programs: ProgramCluster) -> None:
    programs.engine.say = says
    agents = {"coder": CODER}
    for agent, ends in (({"kind": "bash"}, StopReason.SUBMITTED), (SHORT, StopReason.STEP_LIMIT)):
        mixed = await make(programs, {**agent, "override": True}, agents, (None, "coder", "codex"))
        results = await mixed.play(programs)
        assert {each.stop_reason for each in results.values()} == {ends}
        trained = await samples(programs, mixed)
        assert all(bool(each) == (agent is not SHORT) for each in trained.values())
        assert (await collect(programs.workers.db, mixed.campaign)).agents == ()


async def test_an_agent_outside_takes_only_the_tasks_that_ask_for_it(
    programs: ProgramCluster,
) -> None:
    programs.engine.say = says
    db = programs.workers.db
    outside = {**remote(), "step_limit": 5, "rollout_timeout_s": 77.0}
    mixed = await make(programs, {"kind": "bash"}, {"outside": outside}, (None, "outside"))
    _, key = await session_keys.make(db, mixed.campaign)
    handles = [await mixed.start(programs, asked) for asked in mixed.rollouts]
    async with httpx.AsyncClient(base_url=programs.url, timeout=60.0) as http:
        agent = Outside(http, key)
        session = await agent.take()
        assert session["rollout"] == mixed.rollouts["outside"]
        assert (session["limits"]["calls"], session["limits"]["seconds"]) == (5, 77.0)
        patch = await work(session)
        assert (await agent.finish(session, patch=patch)).status_code == 200
        # The other task is never offered.
        assert (await agent.claim()).status_code == 429
    ends = [(await handle.result()).reward for handle in handles]
    assert ends == [1.0, 1.0]


async def test_what_a_command_starts_follows_from_every_agent_that_may_play(
    programs: ProgramCluster,
) -> None:
    """A section's, and one that a row asks for by its kind."""
    db, settings = programs.workers.db, Settings()

    async def gateways(agents: dict, asked: str | None) -> int:
        mixed = await make(programs, {"kind": "bash"}, agents, (asked,))
        config = training((await campaigns.get(db, mixed.campaign)).config)
        return len(gateway_members(settings, await as_played(db, config)))

    assert await gateways({}, None) == 0
    assert await gateways({"coder": CODER}, None) == 1
    assert await gateways({}, "codex") == 1
    nothing = await make(programs, {"kind": "bash"}, {"coder": CODER}, (None, "codex"))
    with pytest.raises(UsageError, match="offers no sessions: no agent of it runs elsewhere"):
        await session_keys.make(db, nothing.campaign)


async def test_a_node_that_is_killed_while_a_program_and_an_agent_play(
    standing: Standing, stack: StackInfo, tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    place = Place(stack, standing, tmp_path_factory, tmp_path)
    async with SCENES["node"](place, Player("coder")) as scene:
        programs = scene.cluster
        programs.engine.say = says
        hold = Hold(programs.engine, after=2)
        mixed = await make(programs, {"kind": "bash"}, {"coder": CODER}, (None, "coder"))
        handles = {asked: await mixed.start(programs, asked) for asked in mixed.rollouts}
        await until(lambda: hold.num_held == 2)  # one of each
        rollout = mixed.rollouts["coder"]
        play = Play(mixed.campaign, mixed.groups["coder"], rollout, handles["coder"])
        await scene.kill(play, hold)
        hold.let_go.set()
        results = {asked: await handle.result() for asked, handle in handles.items()}
        ends = {asked: (each.stop_reason, each.reward) for asked, each in results.items()}
        assert ends == {None: (StopReason.SUBMITTED, 1.0), "coder": (StopReason.EXITED, 1.0)}
        asked = programs.engine.asked
        assert len(asked) == len(set(asked)) == 6
        program = (await one_rollout.read(programs.workers.db, rollout)).program
        assert program is not None and (len(program.lives), program.num_calls) == (1, 3)
        _, executions = await turns.history(programs.workers.db, mixed.rollouts[None], 0)
        assert [ran.call for ran in executions] == [0, 1, 2]
        for each in mixed.rollouts.values():
            assert (await programs.workers.row(each)).epoch == 0
            await replays(programs.workers, each)
            leases = await sandboxes.rollout_leases(programs.workers.db, each)
            assert {lease.status for lease in leases} <= {SandboxStatus.CLOSED, SandboxStatus.LOST}
