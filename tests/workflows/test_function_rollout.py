"""A Python function plays a rollout: a game over HTTP, or a repository by its sandbox."""

import uuid
from collections.abc import Iterator

import httpx
import pytest
from function_rollouts import EXAMPLE, begin, function, game_service, games, play, processes_of
from program_checks import check_answered_once, once
from program_cluster import ProgramCluster

from cli.operations.runs import campaign_launch as launch
from infra.db.nodes import sandboxes
from infra.db.programs import model_requests, program_lives
from infra.db.rollouts import rollouts
from infra.sandbox.backends import Backends
from infra.sources.importing import import_rows
from infra.sources.protocol import ImportOptions
from infra.sources.resolve import open_source
from mainspring.config.agents.agent import AgentConfig
from mainspring.config.evaluations.evaluation import EvaluationConfig
from mainspring.config.policy import PolicyConfig
from mainspring.config.tasks import TasksConfig
from mainspring.status import FaultKind, StopReason, Verdict
from mainspring.tasks.sandbox_choice import IN_PROCESS


@pytest.fixture(autouse=True)
def example_importable(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    yield


def walks(prompt: str, turn: int) -> str:
    """To the treasure, as the last line of the prompt tells."""
    last = prompt.rpartition("You are in room")[2]
    if "is here" in last:
        return "take"
    return " Right\n" if "to the right" in last else "left"


async def test_the_example_plays_a_game_over_http_and_its_reward_arrives(
    programs: ProgramCluster,
) -> None:
    programs.engine.say = walks
    async with game_service() as service:
        rollout, result = await play(programs, function("player:solve", service=service))
        assert await games(service) == []
    assert (result.stop_reason, result.verdict) == (StopReason.EXITED, Verdict.RESOLVED)
    assert result.reward == 1.0 and result.num_turns >= 2
    await check_answered_once(programs, rollout, num_calls=result.num_turns, num_lives=1)
    db = programs.workers.db
    assert await rollouts.get_final_patch(db, rollout) == b"1.0"
    report = await rollouts.get_grade_report(db, rollout)
    assert report is not None and (report.judge, report.score) == ("function", 1.0)
    [lease] = await sandboxes.rollout_leases(db, rollout)
    assert (lease.backend, lease.status.value) == (IN_PROCESS, "closed")
    assert processes_of(rollout) == []


async def test_a_game_that_is_lost_is_worth_nothing(programs: ProgramCluster) -> None:
    programs.engine.say = lambda prompt, turn: "look around"
    async with game_service() as service:
        _, result = await play(programs, function("player:solve", service=service))
    assert (result.stop_reason, result.verdict) == (StopReason.EXITED, Verdict.NOT_RESOLVED)
    assert (result.reward, result.num_turns) == (0.0, 12)


async def test_a_function_fixes_the_issue_in_its_sandbox(programs: ProgramCluster) -> None:
    said = ("$ cat calc.py", "$ sed -i 's/a - b/a + b/' calc.py", "done")
    programs.engine.say = lambda prompt, turn: said[turn]
    rollout, result = await programs.play(function("fix"))
    assert (result.stop_reason, result.reward, result.num_turns) == (StopReason.EXITED, 1.0, 3)
    await check_answered_once(programs, rollout, num_calls=3, num_lives=1)
    asked = await model_requests.bodies(programs.workers.db, rollout, 0)
    assert "a - b" in asked[1][1].messages[-1].text


@pytest.mark.parametrize("number", ["0.25", "-2", "7.5"])
async def test_the_number_that_it_returns_is_the_reward(
    programs: ProgramCluster, number: str
) -> None:
    programs.engine.say = lambda prompt, turn: number
    _, result = await play(programs, function("count", num_calls=1))
    assert result.reward == float(number)
    resolved = Verdict.RESOLVED if float(number) >= 1 else Verdict.NOT_RESOLVED
    assert result.verdict is resolved


async def test_a_class_of_the_campaign_judges_what_it_returned(programs: ProgramCluster) -> None:
    programs.engine.say = lambda prompt, turn: "two words"
    named = {"treasure": "acting_functions:ByLength"}
    rollout, result = await play(programs, function("gives_json"), environments=named)
    stored = b'{"words": ["two", "words"]}'
    assert await rollouts.get_final_patch(programs.workers.db, rollout) == stored
    assert (result.verdict, result.reward) == (Verdict.RESOLVED, len(stored) / 100)


async def test_one_that_never_ends_is_ended_at_its_limit_with_all_that_it_started(
    programs: ProgramCluster,
) -> None:
    programs.engine.say = lambda prompt, turn: "1"
    rollout, result = await play(programs, function("never_ends"), rollout_timeout_s=8.0)
    assert (result.stop_reason, result.verdict) == (StopReason.WALL_TIME, Verdict.NO_PATCH)
    assert result.reward == 0.0 and processes_of(rollout) == []
    row = await programs.workers.row(rollout)
    assert row.patch_note == "the function was ended before it returned"


async def test_the_step_limit_ends_it(programs: ProgramCluster) -> None:
    programs.engine.say = lambda prompt, turn: str(turn)
    rollout, result = await play(programs, function("count", num_calls=9), step_limit=2)
    assert (result.stop_reason, result.reward) == (StopReason.STEP_LIMIT, 0.0)
    assert len(programs.engine.asked) == 2 and processes_of(rollout) == []


@pytest.mark.parametrize(
    ("name", "num_calls", "words"),
    [
        ("raises_then", 1, ("raised KeyError: 'hm'", "acting_functions.py:")),
        ("raises_at_once", 0, ("raised RuntimeError: no such game",)),
        ("never_asks", 0, ("returned before a request of it was answered", "model_url")),
        ("gives_words", 1, ("returned a str, expected a number",)),
    ],
)
async def test_one_that_fails_is_masked_by_its_name_and_error(
    programs: ProgramCluster, name: str, num_calls: int, words: tuple[str, ...]
) -> None:
    programs.engine.say = lambda prompt, turn: "hm"
    rollout, result = await play(programs, function(name))
    assert (result.stop_reason, result.reward) == (StopReason.INFRA_FAULT, None)
    assert result.broken is None and len(programs.engine.asked) == num_calls
    fault = (await programs.workers.row(rollout)).fault or ""
    for word in (FaultKind.FUNCTION_FAILED, f"'acting_functions:{name}'", rollout, *words):
        assert word in fault
    [life] = await program_lives.of_rollout(programs.workers.db, rollout, 0)
    assert name == "never_asks" or words[0] in (life.output or "")


async def test_a_repository_is_not_graded_when_its_function_raised(
    programs: ProgramCluster,
) -> None:
    programs.engine.say = lambda prompt, turn: "hm"
    rollout, result = await programs.play(function("raises_then"))
    assert (result.stop_reason, result.reward) == (StopReason.INFRA_FAULT, None)
    assert "KeyError" in ((await programs.workers.row(rollout)).fault or "")


async def test_a_prompt_that_grew_too_long_is_the_policys_end(programs: ProgramCluster) -> None:
    programs.engine.say = lambda prompt, turn: "more"
    rollout, result = await play(programs, function("without_end"), max_context=2000)
    assert (result.stop_reason, result.verdict) == (StopReason.CONTEXT_FULL, Verdict.NO_PATCH)
    assert result.reward == 0.0 and result.num_turns >= 1
    [life] = await program_lives.of_rollout(programs.workers.db, rollout, 0)
    assert life.returncode == 1 and "BadRequestError" in (life.output or "")


async def test_other_requests_at_its_port_need_its_key(programs: ProgramCluster) -> None:
    """The port is at the machine's loopback: who does not know the key has no session."""
    programs.engine.say = lambda prompt, turn: "1"
    campaign, group, rollout = await begin(programs, function("count", num_calls=1))
    answers: list[int] = []

    async def knock() -> None:
        [process] = processes_of(rollout)
        [port] = {each.raddr.port for each in process.net_connections("tcp4") if each.raddr}
        body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as other:
            for path in ("/v1/chat/completions", "/s/mss_guessed/v1/chat/completions"):
                answers.append((await other.post(path, json=body)).status_code)

    programs.engine.hold = once(knock, turn=0)
    result = await (await programs.workers.start(rollout, campaign, group)).result()
    assert (result.reward, answers) == (1.0, [401, 401])


async def test_the_example_is_imported_and_evaluated(programs: ProgramCluster) -> None:
    name = f"eval-{uuid.uuid4().hex[:8]}"
    options = ImportOptions(name=name, id_prefix=f"{name}-")
    source = open_source(str(EXAMPLE / "tasks.jsonl"), options)
    await import_rows(programs.workers.db, source.rows(), lambda _: None)
    programs.engine.say = walks
    async with game_service() as service:
        config = EvaluationConfig(
            name=name,
            tasks=TasksConfig(source=name),
            agent=AgentConfig(**function("player:solve", service=service)),
            policy=PolicyConfig(model="scripted", max_context=100_000, max_new_tokens=1000),
            split="train",
        )
        campaign = await launch.create(programs.workers.db, config, Backends({}))
        handle = await launch.start(programs.workers.client, programs.workers.db, campaign)
        await handle.result()
        assert await games(service) == []
    rows = await rollouts.list_rollouts(programs.workers.db, campaign=campaign)
    assert [row.reward for row in rows] == [1.0] * 4
