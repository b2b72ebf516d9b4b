"""Whether this machine can make the agent of Harbor that a campaign names, found out in a process
of its own: `python -m infra.harbor.checking`.

Harbor takes seconds to import, and a class of your own runs code: neither is for a command or a
node. Invariant: what is refused is told in one sentence with its remedy. Imported by commands and
by the activity that checks extensions, neither of which imports Harbor.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from infra.functions.process import environment_of
from infra.harbor.installation import require
from mainspring.config.agents.agent import AgentConfig
from mainspring.errors import ConfigError
from mainspring.programs.harbor import HARBOR, HarborStart
from mainspring.programs.profile import Ask
from mainspring.programs.profiles.harbor import HarborProfile

_MODULE = "infra.harbor.checking"
TIMEOUT_S = 120.0
"""At a command. Harbor's import takes seconds, on a busy machine many."""
NODE_TIMEOUT_S = 25.0
"""At a node, which answers a command that waits for it."""
_NO_MODEL = "http://127.0.0.1:9/v1"
_ASK = Ask(instruction="Fix it.", workdir="/", max_context=8192, max_new_tokens=1024)


def check_harbor(agent: AgentConfig) -> None:
    """Check a Harbor agent; other kinds pass. Raises ConfigError."""
    if agent.kind != HARBOR:
        return
    profile = HarborProfile(agent)
    require()
    start = profile.start(_ASK)
    refused = _told({"start": start.model_dump(mode="json")}, profile.variables, TIMEOUT_S)
    if refused is not None:
        raise refused


def problem_of(agent: str) -> str:
    """Why this machine cannot make the agent; empty: it can. Blocks for seconds."""
    try:
        require()
    except ConfigError as error:
        return f"{error.message}; {error.remedy}"
    refused = _told({"agent": agent}, (), NODE_TIMEOUT_S)
    return "" if refused is None else refused.message


def _told(question: object, variables: Sequence[str], timeout_s: float) -> ConfigError | None:
    try:
        ran = subprocess.run(
            [sys.executable, "-P", "-m", _MODULE],
            input=json.dumps(question).encode(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment_of(variables),
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return ConfigError(
            f"Harbor's agent could not be imported within {timeout_s:g} s",
            remedy="import its module by hand, and look what takes so long",
        )
    _, mark, answer = ran.stdout.rpartition(b"\0")
    if not mark:
        return ConfigError(
            f"Harbor's agent ended the process that imported it (exit code {ran.returncode})",
            remedy="import its module by hand",
        )
    message, remedy = json.loads(answer)
    return ConfigError(message, remedy=remedy) if message else None


def _main() -> NoReturn:
    question = json.load(sys.stdin)
    message, remedy = "", ""
    try:
        _try(question)
    except ConfigError as error:
        message, remedy = error.message, error.remedy
    sys.stdout.flush()
    os.write(1, b"\0" + json.dumps([message, remedy]).encode())
    os._exit(0)  # at once, also when threads of the agent still run


def _try(question: dict[str, object]) -> None:
    """Raises ConfigError."""
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
    from infra.harbor.making import class_of, make

    if "agent" in question:
        class_of(str(question["agent"]))
        return
    with tempfile.TemporaryDirectory() as folder:
        make(HarborStart.model_validate(question["start"]), Path(folder), _NO_MODEL)


if __name__ == "__main__":
    _main()
