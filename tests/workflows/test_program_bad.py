"""Programs that misbehave after they have asked: none holds its node, its sandbox, or others up.
And those that end because their context is full: the rollout tells that it was so."""

import json
import shlex

import psutil
import pytest
from program_cluster import AGENT, ProgramCluster, calling

from cli.rollout.rollout_screen import print_one
from mainspring.config.sandbox import SandboxConfig
from mainspring.status import StopReason
from reports import one_rollout
from tests.waiting import until

FIX = calling("sed -i 's/a - b/a + b/' calc.py")
SMALL = SandboxConfig(memory_mb=256, max_pids=48, disk_mb=64)


def then(*lines: str) -> dict[str, object]:
    """The example's program, which fixes the bug, and what the shell does after it."""
    program = f"cat > /tmp/agent.py <<'PROGRAM'\n{AGENT.read_text()}\nPROGRAM"
    command = "\n".join([program, 'python3 /tmp/agent.py "$TASK"', *lines])
    return {"kind": "command", "options": {"command": command}}


def left_behind(word: str) -> list[int]:
    found = []
    for process in psutil.process_iter(["cmdline"]):
        if word in " ".join(process.info["cmdline"] or ()):
            found.append(process.pid)
    return found


FORKS = """python3 - <<'PROGRAM'
import subprocess
try:
    for _ in range(400):  # bounded, where a sandbox cannot bound it
        subprocess.Popen(["sleep", "300"])
except OSError as error:
    print("no more", error)
PROGRAM"""
BAD = {
    "forks": (FORKS, "no more", 120.0),
    "takes memory": ("python3 -c 'x = bytes(3_000_000_000)'", "", 120.0),
    "fills the disk": ("head -c 900000000 /dev/zero > big; echo so far", "so far", 120.0),
    "prints without end": ("yes | head -c 100000000", "y y", 120.0),
    "stops itself": ("kill -STOP $$", "", 25.0),
    "kills all": ("kill -9 -1", "", 120.0),
}
"""What the shell does after the fix, what the record of its life shows, and the rollout's time."""


@pytest.mark.parametrize("name", BAD)
async def test_what_the_policy_did_is_graded_all_the_same(
    programs: ProgramCluster, name: str
) -> None:
    line, printed, timeout_s = BAD[name]
    programs.engine.say = lambda prompt, turn: [FIX, "It is fixed."][turn]
    rollout, result = await programs.play(then(line), sandbox=SMALL, rollout_timeout_s=timeout_s)
    assert result.stop_reason in (StopReason.EXITED, StopReason.WALL_TIME)
    assert (result.reward, result.num_turns) == (1.0, 2)
    view = await one_rollout.read(programs.workers.db, rollout)
    assert view.program is not None
    output = view.program.lives[-1].output
    assert printed in " ".join(output.split()), output[-500:]
    assert await programs.workers.open_sandboxes() == []


async def test_what_a_program_leaves_running_ends_with_its_sandbox(
    programs: ProgramCluster,
) -> None:
    """Also what has left its session and its process group, and asks again and again."""
    word = "left-by-a-program"
    asking = (
        "import os, sys, time, urllib.request\n"
        "while True:\n"
        "    try:\n"
        "        urllib.request.urlopen(os.environ['OPENAI_BASE_URL'] + '/models').read()\n"
        "    except OSError:\n"
        "        time.sleep(0.1)\n"
    )
    programs.engine.say = lambda prompt, turn: [FIX, "It is fixed."][turn]
    lines = [
        f"cat > /tmp/asking.py <<'PROGRAM'\n{asking}PROGRAM",
        f"nohup setsid python3 /tmp/asking.py {word} >/dev/null 2>&1 &",
        f"(setsid sh -c 'trap \"\" TERM HUP INT; while :; do sleep 1; done' {word} &) &",
        "sleep 1",
    ]
    _, result = await programs.play(then(*lines), rollout_timeout_s=120.0)
    assert (result.stop_reason, result.reward) == (StopReason.EXITED, 1.0)
    assert await programs.workers.open_sandboxes() == []
    await until(lambda: not left_behind(word))


RESULT = {"type": "result", "subtype": "success", "is_error": True, "result": "It gave up."}
ROOM = "Codex ran out of room in the model's context window."


@pytest.mark.parametrize(
    ("event", "code", "stop_reason", "told"),
    [
        (
            RESULT | {"terminal_reason": "rapid_refill_breaker"},
            1,
            StopReason.CONTEXT_FULL,
            "context full",
        ),
        (
            {"type": "turn.failed", "error": {"message": ROOM}},
            1,
            StopReason.CONTEXT_FULL,
            "context full",
        ),
        (RESULT | {"terminal_reason": "model_error"}, 1, StopReason.EXITED, "ended by the program"),
        ({"type": "turn.completed"}, 0, StopReason.EXITED, "ended by the program"),
    ],
)
async def test_a_client_that_tells_that_its_context_is_full_ends_its_rollout_so(
    programs: ProgramCluster,
    capsys: pytest.CaptureFixture[str],
    event: dict[str, object],
    code: int,
    stop_reason: StopReason,
    told: str,
) -> None:
    programs.engine.say = lambda prompt, turn: [FIX, "It is fixed."][turn]
    line = f"echo {shlex.quote(json.dumps(event))}; exit {code}"
    rollout, result = await programs.play(then(line))
    assert (result.stop_reason, result.reward) == (stop_reason, 1.0)
    print_one(await one_rollout.read(programs.workers.db, rollout), only_turn=None)
    shown = capsys.readouterr().out
    assert told in shown and "its words: " in shown
