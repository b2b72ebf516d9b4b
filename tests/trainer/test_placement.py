"""Ranks of a Ray cluster: a group that shares layers stands on one host, and is placed again."""

import json
import os
import subprocess
import sys


def test_ranks_wait_for_a_host_that_holds_them_and_are_placed_again(make_model) -> None:
    _, directory = make_model("qwen3")
    command = [sys.executable, "-W", "ignore", "-m", "tests.trainer.placed_ranks", str(directory)]
    # Ray's sockets have long paths.
    environment = {name: value for name, value in os.environ.items() if name != "TMPDIR"}
    ended = subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment)
    assert ended.returncode == 0, ended.stderr[-2000:]
    # Ray prints what a lost host's log has, before it and after.
    [line] = [each for each in ended.stdout.splitlines() if each.startswith('{"refusal"')]
    found = json.loads(line)
    assert "need 2 CPUs on one host;" in found["refusal"]
    assert "has 1 host with 1 CPU," in found["refusal"] and "within 3 s" in found["refusal"]
    assert found["lost"] == "TrainerLost"
    # One host before, another one after the first was lost.
    assert len(found["before"]) == len(found["after"]) == 1
    assert found["before"] != found["after"]
