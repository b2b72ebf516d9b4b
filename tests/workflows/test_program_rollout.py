"""A program plays a rollout; only the replies are scripted, at the engine's seam."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from cluster import Host, bwrap_or_skip
from program_checks import make_bundle
from program_cluster import ProgramCluster, calling, own_program, program_cluster

from cli.operations.machine.embedded_stack import StackInfo
from infra.db.programs import model_requests
from infra.db.rollouts import turns
from infra.db.training.batches import load_groups
from mainspring.ids import NodeId
from mainspring.programs.record import BranchKind
from mainspring.protocol.rollout import STRAGGLER_SIGNAL
from mainspring.status import StopReason, Verdict
from mainspring.trajectories.samples import samples_of
from reports import one_rollout
from reports.collect import collect
from reports.summary import summary
from tests.waiting import until

FIX = calling("sed -i 's/a - b/a + b/' calc.py")


@pytest.fixture(scope="module")
async def programs(
    stack: StackInfo, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[ProgramCluster]:
    backends = await bwrap_or_skip(tmp_path_factory.mktemp("sandboxes"))
    hosts = {NodeId("program-node"): Host(backends, capacity=8)}
    async with program_cluster(stack, hosts, tmp_path_factory.mktemp("model")) as cluster:
        yield cluster


@pytest.fixture
def cluster(programs: ProgramCluster) -> ProgramCluster:
    programs.engine.forget()
    return programs


async def test_a_program_fixes_the_issue_and_its_tokens_are_trained(
    cluster: ProgramCluster,
) -> None:
    cluster.engine.say = lambda prompt, turn: [calling("cat calc.py"), FIX, "It is fixed."][turn]
    rollout, result = await cluster.play()
    assert (result.stop_reason, result.reward, result.num_turns) == (StopReason.EXITED, 1.0, 3)
    calls, executions = await turns.history(cluster.workers.db, rollout, 0)
    assert executions == [] and [call.parent for call in calls] == [None, 0, 1]
    # What the engine consumed and produced is what the trainer gets.
    row = await cluster.workers.row(rollout)
    [group] = await load_groups(cluster.workers.db, [row.group])
    [played] = group.rollouts
    [sample] = samples_of(rollout, played.calls, trained=played.trained)
    last = cluster.engine.asked[-1]
    assert tuple(sample.token_ids[: len(last)]) == last
    assert sample.num_action_tokens == sum(len(call.completion_ids) for call in calls)
    view = await one_rollout.read(cluster.workers.db, rollout)
    assert view.program is not None and view.program.num_calls == 3
    assert [life.returncode for life in view.program.lives] == [0]
    assert "a - b" in view.turns[1].told and view.turns[0].branch == "main"
    assert view.as_dict()["program"]["num_replayed"] == 0


async def test_the_step_limit_ends_the_program_and_its_tree_is_graded(
    cluster: ProgramCluster,
) -> None:
    cluster.engine.say = lambda prompt, turn: FIX if turn == 0 else calling(f"echo {turn}")
    _, result = await cluster.play(step_limit=3)
    assert (result.stop_reason, result.reward) == (StopReason.STEP_LIMIT, 1.0)
    assert len(cluster.engine.asked) == 3 and result.num_turns == 3


async def test_a_program_that_hangs_is_ended_at_its_time_limit(cluster: ProgramCluster) -> None:
    cluster.engine.say = lambda prompt, turn: [FIX, calling("sleep 600")][turn]
    _, result = await cluster.play(rollout_timeout_s=6.0)
    assert (result.stop_reason, result.reward) == (StopReason.WALL_TIME, 1.0)


async def test_a_program_whose_group_has_a_quorum_is_ended_and_graded(
    cluster: ProgramCluster,
) -> None:
    cluster.engine.say = lambda prompt, turn: [FIX, calling("sleep 600")][turn]
    campaign, group, [rollout] = await cluster.workers.make_rollouts(program=own_program())
    handle = await cluster.workers.start(rollout, campaign, group)
    await until(lambda: len(cluster.engine.asked) == 2)
    await handle.signal(STRAGGLER_SIGNAL, 1.0)
    result = await handle.result()
    assert (result.stop_reason, result.reward) == (StopReason.STRAGGLER, 1.0)


async def test_a_program_that_hangs_before_it_asks_is_masked(cluster: ProgramCluster) -> None:
    program = {"kind": "command", "options": {"command": "echo looking; sleep 600"}}
    rollout, result = await cluster.play(program, rollout_timeout_s=3.0)
    assert (result.stop_reason, result.reward) == (StopReason.INFRA_FAULT, None)
    fault = (await cluster.workers.row(rollout)).fault
    for word in ("before it asked anything", "looking", rollout, "agents check"):
        assert word in fault


async def test_a_program_that_never_asks_is_masked_with_what_it_printed(
    cluster: ProgramCluster,
) -> None:
    command = "echo no such model; seq 5000 | xargs; printf '\\033[31mthe end\\n'; exit 3"
    program = {"kind": "command", "options": {"command": command}}
    rollout, result = await cluster.play(program)
    assert (result.stop_reason, result.reward) == (StopReason.INFRA_FAULT, None)
    fault = (await cluster.workers.row(rollout)).fault
    for word in ("exit code 3", "printed: no such model 1 2", "... ", "the end", rollout, "check"):
        assert word in fault
    assert "\x1b" not in fault


async def test_the_hash_of_a_programs_bundle_is_in_the_campaigns_record(
    cluster: ProgramCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAINSPRING_AGENTS_DIR", str(tmp_path))
    made = make_bundle(tmp_path, 'exec python3 "$(dirname "$0")/agent.py" "$(cat "$TASK_FILE")"')
    cluster.engine.say = lambda prompt, turn: [FIX, "done"][turn]
    rollout, result = await cluster.play({"kind": "langgraph"})
    assert (result.stop_reason, result.reward) == (StopReason.EXITED, 1.0)
    view = await one_rollout.read(cluster.workers.db, rollout)
    assert view.program is not None
    assert [life.bundle_sha256 for life in view.program.lives] == [made.sha256]
    campaign = (await cluster.workers.row(rollout)).campaign
    data = await collect(cluster.workers.db, campaign)
    assert summary(data)["bundles"] == {made.sha256: 1}


async def test_a_bundle_that_an_image_cannot_run_masks_the_rollout_with_its_sentence(
    cluster: ProgramCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAINSPRING_AGENTS_DIR", str(tmp_path))
    sentence = "needs glibc 2.90 or Python 3.90, and this image has neither"
    make_bundle(tmp_path, f'echo "$0 {sentence}" >&2; exit 127')
    rollout, result = await cluster.play({"kind": "langgraph"})
    assert (result.stop_reason, result.reward) == (StopReason.INFRA_FAULT, None)
    fault = (await cluster.workers.row(rollout)).fault
    assert "exit code 127" in fault and sentence in fault


async def test_an_exit_code_decides_no_reward(cluster: ProgramCluster) -> None:
    once = own_program()["options"]["command"] + "; exit 7"
    cluster.engine.say = lambda prompt, turn: [FIX, "done"][turn]
    rollout, result = await cluster.play({"kind": "command", "options": {"command": once}})
    assert (result.stop_reason, result.reward) == (StopReason.EXITED, 1.0)
    assert (await cluster.workers.row(rollout)).verdict is Verdict.RESOLVED


async def test_the_same_request_again_after_its_answer_is_a_second_sample(
    cluster: ProgramCluster,
) -> None:
    source = (
        "import json, os, urllib.request\n"
        "body = json.dumps({'model': 'm', 'messages': [{'role': 'user', 'content': 'hi'}]})\n"
        "for _ in range(3):\n"
        "    url = os.environ['OPENAI_BASE_URL'] + '/chat/completions'\n"
        "    headers = {'Content-Type': 'application/json'}\n"
        "    request = urllib.request.Request(url, body.encode(), headers)\n"
        "    print(json.load(urllib.request.urlopen(request))['choices'][0]['message'])\n"
    )
    said = iter(["one", "two", "three"])
    cluster.engine.say = lambda prompt, turn: next(said)
    rollout, result = await cluster.play(own_program(source))
    calls, _ = await turns.history(cluster.workers.db, rollout, 0)
    assert [(call.text, call.parent) for call in calls] == [
        ("one", None),
        ("two", None),
        ("three", None),
    ]
    known = await model_requests.history(cluster.workers.db, rollout, 0)
    assert {each.kind for each in known} == {BranchKind.MAIN}
    assert result.verdict is Verdict.NO_PATCH


async def test_a_prompt_beyond_the_context_is_told_to_the_program(
    cluster: ProgramCluster,
) -> None:
    cluster.engine.say = lambda prompt, turn: calling("seq 1 2000")
    rollout, result = await cluster.play(max_context=2000)
    assert result.stop_reason is StopReason.CONTEXT_FULL
    view = await one_rollout.read(cluster.workers.db, rollout)
    assert view.program is not None and view.program.num_refused == 1
    assert "2000 maximum" in view.program.lives[0].output
