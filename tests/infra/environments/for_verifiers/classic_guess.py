"""An environment in the form from before verifiers 0.4: guess a number, or ask a tool."""

import random
import re

import verifiers as vf
from datasets import Dataset


class Guess(vf.MultiTurnEnv):
    async def env_response(self, messages, state, **kwargs):
        found = re.search(r"\d+", str(messages[-1].content))
        secret, guess = int(state["answer"]), int(found[0]) if found else 0
        state["num_guesses"] = state.get("num_guesses", 0) + 1
        if guess == secret:
            state["won"] = True
            state["final_env_response"] = [{"role": "user", "content": "Yes."}]
            return state["final_env_response"]
        text = f"It is {'higher' if guess < secret else 'lower'} than {guess}."
        return [{"role": "user", "content": text}]


async def won(state, **kwargs) -> float:
    return float(state.get("won", False))


async def num_guesses(state, **kwargs) -> float:
    if state["answer"] == "0":
        raise KeyError("answer")
    return float(state.get("num_guesses", 0))


def double(number: int) -> str:
    """Double a number."""
    return str(2 * number)


async def said_ten(completion, **kwargs) -> float:
    return float("10" in str(completion[-1].content))


def load_environment(tools: bool = False, highest: int = 100, num_tasks: int = 8):
    if tools:
        rows = [{"question": "Double five.", "answer": "10"}]
        rubric = vf.Rubric(funcs=[said_ten], weights=[1.0])
        return vf.ToolEnv(dataset=Dataset.from_list(rows), tools=[double], rubric=rubric)
    rows = [
        {
            "question": f"Guess a number from 1 to {highest}.",
            "answer": str(random.Random(f"guess/{number}").randint(1, highest)),
        }
        for number in range(num_tasks)
    ]
    rows.append({"question": "Guess.", "answer": "0"})
    rubric = vf.Rubric(funcs=[won, num_guesses], weights=[1.0, 0.0])
    return Guess(dataset=Dataset.from_list(rows), rubric=rubric, max_turns=7)
