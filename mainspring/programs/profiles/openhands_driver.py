"""The OpenHands SDK's own agent, without a browser. Runs in a sandbox, from its bundle."""
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

import os

from openhands.sdk import LLM, Agent, Conversation, Tool
from openhands.tools.file_editor import FileEditorTool
from openhands.tools.preset.default import get_default_condenser
from openhands.tools.task_tracker import TaskTrackerTool
from openhands.tools.terminal import TerminalTool

MAX_STEPS = 2000
"""The campaign's own limit is what ends it."""


def main() -> None:
    max_context = int(os.environ["MAX_CONTEXT"])
    max_new_tokens = int(os.environ["MAX_NEW_TOKENS"])
    llm = LLM(
        model=f"openai/{os.environ['MODEL_NAME']}",
        base_url=os.environ["OPENAI_BASE_URL"],
        api_key=os.environ["OPENAI_API_KEY"],
        max_input_tokens=max(1, max_context - max_new_tokens),
        max_output_tokens=max_new_tokens,
        num_retries=20,
        timeout=3600,
    )
    agent = Agent(
        llm=llm,
        tools=[
            # Not tmux, which some images have and others not: the same in each of them.
            Tool(name=TerminalTool.name, params={"terminal_type": "subprocess"}),
            Tool(name=FileEditorTool.name),
            Tool(name=TaskTrackerTool.name),
        ],
        system_prompt_kwargs={"cli_mode": True},
        condenser=get_default_condenser(llm.model_copy(update={"usage_id": "condenser"})),
    )
    conversation = Conversation(
        agent=agent, workspace=os.getcwd(), visualizer=None, max_iteration_per_run=MAX_STEPS
    )
    with open(os.environ["TASK_FILE"]) as task:
        conversation.send_message(task.read())
    conversation.run()
    conversation.close()


main()
