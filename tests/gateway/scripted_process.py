"""What replies in the place of an engine, as a process of its own, so that a test can kill it.

    python -m tests.gateway.scripted_process PORT FOLDER

Each reply takes `REPLY_S`, and has a number of its own by chance: sampled again it is another one,
so that a program that saw one and is told another is found out.
"""

import json
import re
import secrets
import sys
import time
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.gateway.kill_plan import KillPlan
from tests.web_server import Answer

REPLY_S = 2.0
NUM_CALLS = 10
"""Of the agent itself, for clients that offer tools."""
FIX_AT = 6
"""After the first kill and before the last: what is lost would be missed."""
EDITS = "SEARCH"
"""In prompts of a client without tools, whose edits are text."""
STEP = re.compile(r"Step \d+, number [0-9a-f]{12}")
EDIT = """calc.py
<<<<<<< SEARCH
    return a - b
=======
    return a + b
>>>>>>> REPLACE
"""
SHELLS = ("bash", "Bash", "exec_command", "shell", "shell_command", "run_shell_command", "terminal")
_TOOLS = re.compile(r"\n<tools>\n(.*?)\n</tools>\n", re.DOTALL)
_RESULT = "\n<tool_response>\n"


def shell_of(prompt: str) -> dict[str, Any] | None:
    found = _TOOLS.search(prompt)
    tools = [json.loads(line) for line in found[1].splitlines()] if found else []
    functions = [tool.get("function", tool) for tool in tools]
    return next((tool for tool in functions if tool["name"] in SHELLS), None)


def turn_of(prompt: str) -> int | None:
    """None: a request beside the agent's own, such as one for a title."""
    if _TOOLS.search(prompt):
        return prompt.count(_RESULT)
    return len(STEP.findall(prompt)) if EDITS in prompt else None


def command(turn: int, prompt: str) -> str | None:
    """None: the agent is done."""
    if turn == FIX_AT:
        return "sed -i 's/a - b/a + b/' calc.py"
    if turn < NUM_CALLS - 1:
        return f"echo this is step {turn}; cat calc.py"
    return "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT" if "COMPLETE_TASK" in prompt else None


def reply(prompt: str) -> str:
    turn = turn_of(prompt)
    if turn is None:
        return "Fix add"
    step = f"Step {turn}, number {secrets.token_hex(6)}"
    shell = shell_of(prompt)
    if shell is None:
        return f"{step}\n\n{EDIT}"
    line = command(turn, prompt)
    if line is None:
        return step
    known = {
        "command": ["bash", "-c", line] if shell["name"] == "shell" else line,
        "cmd": line,
        "description": "Run it",
        "is_background": False,
        "security_risk": "LOW",
        "summary": "Run it",
    }
    wanted = shell["parameters"].get("required") or ["command"]
    arguments = {name: known[name] for name in wanted if name in known}
    call = json.dumps({"name": shell["name"], "arguments": arguments})
    return f"{step}\n<tool_call>\n{call}\n</tool_call>"


class Handler(Answer):
    plan: KillPlan

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        rollout, prompt = asked["rollout"], asked["prompt"]
        turn = turn_of(prompt)
        if self.plan.holds(rollout, turn):
            self.plan.mark("held", rollout, turn)
            while self.plan.holds(rollout, turn):
                time.sleep(0.05)
        time.sleep(REPLY_S)
        data = json.dumps(reply(prompt)).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


if __name__ == "__main__":
    Handler.plan = KillPlan(Path(sys.argv[2]))
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
