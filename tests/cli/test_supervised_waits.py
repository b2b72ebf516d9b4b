"""Waits for what a command of this machine brings: it comes, and nothing has to be started."""

import os
import subprocess
import sys
from pathlib import Path

from cli.operations.machine.supervisor import starting
from mainspring.words.wait import Wait


def test_a_worker_that_comes_is_no_advice_to_start_one(tmp_path: Path) -> None:
    found = [
        Wait("waiting for a rollout worker: nothing polls rollout", "start `mainspring worker x`"),
        Wait("paused by a person", "run `mainspring campaign resume a`"),
    ]
    assert starting(found, tmp_path, None) == found
    told = starting(found, tmp_path, 7)
    assert told[0].what == "starting a rollout worker: nothing polls rollout"
    assert told[0].remedy == f"process 7 is starting it: see {tmp_path / 'logs'}"
    assert [wait.kind.value for wait in told] == ["starting", "blocked"]
    assert told[1] == found[1]
    # After Ctrl-C the command brings all of them, and not the first of four.
    told = starting(found, tmp_path, None, "mainspring train --name a")
    assert told[0].remedy == "run `mainspring train --name a`: it brings all workers of this run"
    assert told[1] == found[1]


def test_an_engine_that_comes_is_no_advice_to_start_one(tmp_path: Path) -> None:
    reason = "no policy engine answered: /model_info: ConnectError All connection attempts failed"
    found = [
        Wait(
            f"no engine answers at {', '.join(urls)}: {reason}",
            "start the engines of policy.engines",
            engines=urls,
        )
        for urls in (
            ("http://127.0.0.1:4321",),
            ("http://gpu1:30000", "http://127.0.0.1:4321/"),
            ("http://127.0.0.1:4322",),
            ("http://gpu1:30000",),
        )
    ]
    program = [sys.executable, "-c", "input()", "serve", "--no-restart", "--port", "4321"]
    with subprocess.Popen(program, stdin=subprocess.PIPE) as engine:
        told = starting(found, tmp_path, os.getpid())
        assert [wait.what for wait in told[:2]] == [
            "starting engine http://127.0.0.1:4321",
            "starting engine http://127.0.0.1:4321/",
        ]
        assert told[0].remedy == f"process {os.getpid()} is starting it: see {tmp_path / 'logs'}"
        assert [wait.kind.value for wait in told[:2]] == ["starting"] * 2
        assert told[2:] == found[2:], "nothing starts these"
        # A command that keeps no engine starts none.
        assert starting(found, tmp_path, engine.pid) == found
        engine.kill()
    assert starting(found, tmp_path, os.getpid()) == found
