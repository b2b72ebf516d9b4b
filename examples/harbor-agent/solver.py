"""An agent of Harbor's interface: it asks for one command at a time, until a reply has none."""

import re

from harbor.agents.base import BaseAgent
from harbor.environments.base import BaseEnvironment
from harbor.models.agent.context import AgentContext
from openai import AsyncOpenAI

SYSTEM = "Fix the issue. Answer with one bash block, or without one when you are done."
BLOCK = re.compile(r"^```bash[ \t]*\n(.*?)^```[ \t]*$", re.DOTALL | re.MULTILINE)
LAST_CHARS = 4000


class Solver(BaseAgent):
    def __init__(self, *args, timeout_s: int = 30, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self._timeout_s = timeout_s

    @staticmethod
    def name() -> str:
        return "solver"

    def version(self) -> str:
        return "1"

    async def setup(self, environment: BaseEnvironment) -> None:
        """It needs nothing in the sandbox."""

    async def run(
        self, instruction: str, environment: BaseEnvironment, context: AgentContext
    ) -> None:
        messages = [
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": instruction},
        ]
        # Address and key are in the variables that OpenAI's client reads.
        async with AsyncOpenAI(timeout=3600, max_retries=8) as model:
            while True:
                reply = await model.chat.completions.create(model="any", messages=messages)
                text = reply.choices[0].message.content or ""
                found = BLOCK.search(text)
                if found is None:
                    return
                ran = await environment.exec(found[1], timeout_sec=self._timeout_s)
                told = f"exit code {ran.return_code}\n{(ran.stdout or '')[-LAST_CHARS:]}"
                messages.append({"role": "assistant", "content": text})
                messages.append({"role": "user", "content": told})
