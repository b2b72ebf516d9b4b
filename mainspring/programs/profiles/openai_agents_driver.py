"""A small agent on the OpenAI Agents SDK: one tool, a shell. Runs in a sandbox, from its bundle."""
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

import asyncio
import os
import subprocess

from agents import Agent, OpenAIResponsesModel, Runner, function_tool, set_tracing_disabled
from openai import AsyncOpenAI

COMMAND_TIMEOUT_S = 300
MAX_TURNS = 1000
"""The campaign's own limit is what ends it."""


@function_tool
def bash(command: str) -> str:
    """Run a command with bash in the repository, and give what it prints."""
    try:
        ran = subprocess.run(
            ["bash", "-c", command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=COMMAND_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        return f"It took over {COMMAND_TIMEOUT_S} s."
    return f"{ran.stdout.decode(errors='replace')[-10000:]}\n(exit code {ran.returncode})"


async def main(task: str) -> None:
    set_tracing_disabled(True)
    client = AsyncOpenAI(max_retries=20, timeout=3600)
    agent = Agent(
        name="agent",
        instructions="Solve the user's task with the tool bash. When you are done, say so.",
        model=OpenAIResponsesModel(model=os.environ["MODEL_NAME"], openai_client=client),
        tools=[bash],
    )
    ended = await Runner.run(agent, task, max_turns=MAX_TURNS)
    print(ended.final_output)


with open(os.environ["TASK_FILE"]) as file:
    asyncio.run(main(file.read()))
