"""A coding agent in forty lines: it knows nothing of Mainspring, only OpenAI's chat API.

It runs inside the sandbox, in the repository: MODEL_URL is its model, the first argument its task.
"""

import http.client
import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request

URL = os.environ["MODEL_URL"] + "/v1/chat/completions"
BASH = {
    "type": "function",
    "function": {
        "name": "bash",
        "description": "Run a command in the repository.",
        "parameters": {
            "type": "object",
            "properties": {"command": {"type": "string"}},
            "required": ["command"],
        },
    },
}
MAX_TRIES = 60


def complete(messages: list[dict]) -> dict:
    body = json.dumps({"model": "any", "messages": messages, "tools": [BASH]}).encode()
    for _ in range(MAX_TRIES):
        request = urllib.request.Request(URL, body, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request) as answer:
                return json.load(answer)["choices"][0]["message"]
        except urllib.error.HTTPError as error:
            if error.code < 500:
                sys.exit(f"the model refuses: {error.code} {error.read().decode()}")
        except (OSError, ValueError, http.client.HTTPException):
            pass  # the connection was cut
        time.sleep(1.0)  # ask again
    sys.exit("the model does not answer")


def run(command: str) -> str:
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
    return f"exit code {done.returncode}\n{done.stdout}{done.stderr}"


def main(task: str) -> None:
    messages = [
        {"role": "system", "content": "You fix issues. Call bash until the issue is fixed."},
        {"role": "user", "content": task},
    ]
    while True:
        reply = complete(messages)
        messages.append(reply)
        if not reply.get("tool_calls"):
            return
        for call in reply["tool_calls"]:
            command = json.loads(call["function"]["arguments"]).get("command", "")
            result = {"role": "tool", "tool_call_id": call["id"], "content": run(command)}
            messages.append(result)


if __name__ == "__main__":
    main(sys.argv[1])
