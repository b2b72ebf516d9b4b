"""A small agent on LangGraph: one tool, a shell. Runs in a sandbox, from its bundle."""
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

import os
import subprocess

from langchain_core.messages import HumanMessage, SystemMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

COMMAND_TIMEOUT_S = 300
MAX_STEPS = 2000
"""The campaign's own limit is what ends it."""


@tool
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


def main() -> None:
    model = ChatOpenAI(model=os.environ["MODEL_NAME"], max_retries=20, timeout=3600)
    with_tools = model.bind_tools([bash])

    def ask(state: MessagesState) -> dict:
        return {"messages": [with_tools.invoke(state["messages"])]}

    graph = StateGraph(MessagesState)
    graph.add_node("ask", ask)
    graph.add_node("tools", ToolNode([bash]))
    graph.add_edge(START, "ask")
    graph.add_conditional_edges("ask", tools_condition)
    graph.add_edge("tools", "ask")
    instructions = SystemMessage(
        "Solve the user's task with the tool bash. When you are done, say so."
    )
    with open(os.environ["TASK_FILE"]) as task:
        messages = [instructions, HumanMessage(task.read())]
    ended = graph.compile().invoke({"messages": messages}, {"recursion_limit": MAX_STEPS})
    print(ended["messages"][-1].content)


main()
