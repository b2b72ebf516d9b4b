"""Agents of Harbor's interface that play rollouts of tests."""
# pyright: reportMissingImports=false

import asyncio
import tempfile
from pathlib import Path

from harbor.agents.base import BaseAgent
from harbor.agents.installed.base import BaseInstalledAgent
from harbor.agents.installed.mini_swe_agent import MiniSweAgent
from openai import AsyncOpenAI

EDIT = "sed -i 's/a - b/a + b/' calc.py"
CLIENT = """
import json, os, sys, urllib.request
body = json.dumps({"model": "any", "messages": [{"role": "user", "content": sys.argv[1]}]})
request = urllib.request.Request(
    os.environ["OPENAI_BASE_URL"] + "/chat/completions",
    body.encode(),
    {"Content-Type": "application/json"},
)
print(json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"])
"""


async def said(text: str) -> str:
    async with AsyncOpenAI(timeout=600, max_retries=8) as model:
        reply = await model.chat.completions.create(
            model="any", messages=[{"role": "user", "content": text}]
        )
    return reply.choices[0].message.content or ""


class Acting(BaseAgent):
    @staticmethod
    def name() -> str:
        return "acting"

    def version(self) -> str:
        return "1"

    async def setup(self, environment) -> None:
        await environment.exec("git --version")


class Mover(Acting):
    async def run(self, instruction, environment, context) -> None:
        await said(instruction)
        here = (await environment.exec("pwd")).stdout.strip()
        assert await environment.is_dir(here) and await environment.is_file(f"{here}/calc.py")
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            await environment.download_file(f"{here}/calc.py", folder / "calc.py")
            fixed = (folder / "calc.py").read_text().replace("a - b", "a + b")
            (folder / "calc.py").write_text(fixed)
            await environment.upload_file(folder / "calc.py", f"{here}/calc.py")
            (folder / "more").mkdir()
            (folder / "more" / "large").write_bytes(bytes(1 << 20))
            await environment.upload_dir(folder / "more", "/tmp/more")
            await environment.download_dir("/tmp/more", folder / "back")
            assert (folder / "back" / "large").stat().st_size == 1 << 20
        ran = await environment.exec('echo "$A $(pwd)"', cwd="/tmp", env={"A": "'1'"}, user="root")
        assert ran.stdout == "'1' /tmp\n" and ran.return_code == 0, ran
        slow = await environment.exec("echo begun; sleep 60", timeout_sec=1)
        assert slow.return_code == 124 and "begun" in slow.stdout, slow
        # One that is given up is not waited for, and what follows is answered.
        waiting = asyncio.create_task(environment.exec("sleep 2"))
        await asyncio.sleep(0.3)
        waiting.cancel()
        assert (await environment.exec("touch /logs/agent/written")).return_code == 0
        # No key, no model port: this one asks beside the node.
        seen = await environment.exec("env; (: < /dev/tcp/127.0.0.1/8400) && echo open")
        assert "KEY" not in seen.stdout and "open" not in seen.stdout.splitlines(), seen


class Raises(Acting):
    async def run(self, instruction, environment, context) -> None:
        await said(instruction)
        raise KeyError("move")


class NeverAsks(Acting):
    async def run(self, instruction, environment, context) -> None:
        await environment.exec(EDIT)


class NotOne:
    pass


class OwnMini(MiniSweAgent):
    @staticmethod
    def name() -> str:
        return "own-mini"


class InImage(BaseInstalledAgent):
    """Its client is Python, which every sandbox of the tests has."""

    @staticmethod
    def name() -> str:
        return "in-image"

    async def install(self, environment) -> None:
        await self.exec_as_root(environment, "python3 --version && mkdir -p /installed-agent/x")
        with tempfile.TemporaryDirectory() as name:
            file = Path(name) / "client.py"
            file.write_text(CLIENT)
            await environment.upload_file(file, "/installed-agent/client.py")

    async def run(self, instruction, environment, context) -> None:
        spoils = "(sleep 3; echo broken > calc.py) > /dev/null 2>&1 &"
        await self.exec_as_agent(
            environment,
            f'bash -c "$(python3 /installed-agent/client.py hello)"; {spoils}'
            " echo its last words; exit 3",
        )


class RaisesWhenMade(NeverAsks):
    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        raise RuntimeError("no room")
