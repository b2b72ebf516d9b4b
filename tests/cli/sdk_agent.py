"""An agent on an official client, as the task tells: runs in a sandbox, from a bundle."""

import json
import os
import subprocess
import sys

TOOL = {
    "name": "bash",
    "description": "Run a command.",
    "parameters": {"type": "object", "properties": {"command": {"type": "string"}}},
}
URL = os.environ["MODEL_URL"]


def run(command: str) -> str:
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
    return done.stdout + done.stderr


def chat(task: str) -> None:
    import openai

    client = openai.OpenAI(base_url=f"{URL}/v1", api_key="none")
    messages: list = [{"role": "user", "content": task}]
    while True:
        tools: list = [{"type": "function", "function": TOOL}]
        said = client.chat.completions.create(model="any", messages=messages, tools=tools)
        message = said.choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        if not message.tool_calls:
            return
        for call in message.tool_calls:
            told = run(json.loads(call.function.arguments)["command"])
            messages.append({"role": "tool", "tool_call_id": call.id, "content": told})


def responses(task: str) -> None:
    import openai

    client = openai.OpenAI(base_url=f"{URL}/v1", api_key="none")
    items: list = [{"role": "user", "content": task}]
    while True:
        tools: list = [{"type": "function", **TOOL}]
        with client.responses.stream(model="any", input=items, tools=tools) as stream:
            said = stream.get_final_response()
        items += [item.model_dump(exclude_none=True) for item in said.output]
        calls = [item for item in said.output if item.type == "function_call"]
        if not calls:
            return
        for call in calls:
            told = run(json.loads(call.arguments)["command"])
            answer = {"type": "function_call_output", "call_id": call.call_id, "output": told}
            items.append(answer)


def messages(task: str) -> None:
    import anthropic

    client = anthropic.Anthropic(base_url=URL, api_key="none")
    history: list = [{"role": "user", "content": task}]
    tool: dict = {"name": TOOL["name"], "input_schema": TOOL["parameters"]}
    asked: dict = {"model": "any", "max_tokens": 1000, "tools": [tool]}
    while True:
        assert client.messages.count_tokens(model="any", messages=history).input_tokens > 0
        with client.messages.stream(messages=history, **asked) as stream:
            said = stream.get_final_message()
        assert said.usage.input_tokens > 0
        history.append({"role": "assistant", "content": said.content})
        results = [
            {"type": "tool_result", "tool_use_id": each.id, "content": run(each.input["command"])}
            for each in said.content
            if each.type == "tool_use"
        ]
        if not results:
            return
        history.append({"role": "user", "content": results})


if __name__ == "__main__":
    with open(os.environ["TASK_FILE"]) as file:
        text = file.read()
    [play] = [each for each in (chat, responses, messages) if f"by {each.__name__}" in text]
    play(text)
    sys.stdout.write("done\n")
