"""An OpenAI-compatible engine as a process of its own, so that a test can kill it.

    python -m tests.chaos.scripted_engine PORT

A reply depends on the conversation alone: the same evaluation gets the same patches, whatever is
killed. Tasks with an even number in their issue are fixed, the others are changed wrongly.
"""

from tests.chaos.numbered import Completions, Message, number_in, serve

RIGHT, WRONG = "a + b", "a * b"


def command(turn: int, number: int) -> str:
    operation = WRONG if number % 2 else RIGHT
    return [
        "cat calc.py; sleep 0.3",
        rf"printf 'def add(a, b):\n    return {operation}\n' > calc.py; sleep 0.3",
        "git diff | head -20",
        "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT",
    ][turn]


class Handler(Completions):
    def message(self, messages: list[Message]) -> Message:
        number = number_in(messages)
        if number is None:
            return {"content": "ok"}
        turn = sum(message["role"] == "assistant" for message in messages)
        return {"content": f"THOUGHT: turn {turn}\n\n```bash\n{command(turn, number)}\n```"}


if __name__ == "__main__":
    serve(Handler)
