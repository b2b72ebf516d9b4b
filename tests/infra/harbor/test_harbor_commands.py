"""What Harbor's environment asks of a sandbox, with a bash of this machine in its place."""

import asyncio
import os
import random
from pathlib import Path

import pytest

from infra.harbor.exec_text import ExecRefused, exec_text
from infra.harbor.sandbox_files import IN_BYTES, FileNotMoved, SandboxFiles
from mainspring.programs.functions import Ran

CUT = "\n[... output cut here ...]\n"


class Bash:
    """Implements `FunctionSandbox`, and keeps `output_bytes` of an output."""

    def __init__(self, workdir: Path, output_bytes: int = 1 << 20) -> None:
        self._workdir = workdir
        self._output_bytes = output_bytes
        self.num_run = 0

    async def run(self, command: str, *, timeout_s: float | None = None) -> Ran:
        self.num_run += 1
        process = await asyncio.create_subprocess_exec(
            *("bash", "-s"),
            cwd=self._workdir,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await process.communicate(command.encode())
        text, most = output.decode(errors="replace"), self._output_bytes
        is_cut = len(text) > most
        text = text[: most // 2] + CUT + text[-most // 2 :] if is_cut else text
        return Ran(process.returncode or 0, text, truncated=is_cut)


@pytest.mark.parametrize("size", [0, 1, 4096, 3 * IN_BYTES + 17])
@pytest.mark.parametrize("output_bytes", [1 << 20, 2048])
async def test_a_file_comes_back_as_it_was(tmp_path: Path, size: int, output_bytes: int) -> None:
    if size > IN_BYTES and output_bytes < 4096:
        size = 20_000  # a thousand commands prove no more
    files = SandboxFiles(Bash(tmp_path, output_bytes))
    content = random.Random(size).randbytes(size)
    target = str(tmp_path / "new folder" / "it's `$(a)` name\nof two lines")
    await files.put(content, target, 0o755)
    assert Path(target).read_bytes() == content and os.access(target, os.X_OK)
    assert await files.get(target) == content
    await files.put(b"other", target)
    assert Path(target).read_bytes() == b"other" and not os.access(target, os.X_OK)
    assert [path.name for path in Path(target).parent.iterdir()] == [Path(target).name]


async def test_a_folder_comes_back_without_what_is_no_content(tmp_path: Path) -> None:
    source, inside, back = (tmp_path / name for name in ("source", "inside", "back"))
    (source / "deep").mkdir(parents=True)
    (source / "deep" / "file").write_bytes(bytes(range(256)))
    (source / "run.sh").write_text("#!/bin/sh\n")
    (source / "run.sh").chmod(0o755)
    (source / "link").symlink_to("deep/file")
    files = SandboxFiles(Bash(tmp_path))
    (inside / "stays").mkdir(parents=True)
    await files.put_folder(source, str(inside))
    os.mkfifo(inside / "pipe")
    (inside / "out").symlink_to("/etc/passwd")
    await files.get_folder(str(inside), back)
    found = sorted(str(path.relative_to(back)) for path in back.rglob("*"))
    assert found == ["deep", "deep/file", "link", "run.sh", "stays"]
    assert (back / "link").read_bytes() == bytes(range(256)) and os.access(back / "run.sh", os.X_OK)
    assert list(Path("/tmp").glob(".mainspring-files-*")) == []


@pytest.mark.parametrize("path", ["absent", "folder"])
async def test_what_is_no_file_is_refused_by_name(tmp_path: Path, path: str) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(FileNotMoved, match=f"{path} of the sandbox cannot be copied") as refused:
        await SandboxFiles(Bash(tmp_path)).get(str(tmp_path / path))
    assert refused.value.remedy


async def test_a_command_gets_its_folder_and_its_variables(tmp_path: Path) -> None:
    (tmp_path / "a b").mkdir()
    evil = "'\" $(touch fooled) `x`\n\\"
    text = exec_text(
        'pwd; printf %s "$EVIL $OTHER"; cat <<EOF\n$OTHER here\nEOF',
        cwd="a b",
        env={"EVIL": evil, "OTHER": "2"},
        user="root",
        prelude="export OTHER=1",
    )
    ran = await Bash(tmp_path).run(text)
    assert ran.output == f"{tmp_path}/a b\n{evil} 22 here\n"
    assert not list(tmp_path.rglob("fooled"))


async def test_a_command_of_a_folder_that_is_absent_does_not_run(tmp_path: Path) -> None:
    ran = await Bash(tmp_path).run(exec_text("touch ran", cwd="absent"))
    assert ran.returncode == 1 and not (tmp_path / "ran").exists()


def test_a_command_is_as_it_was_where_nothing_is_asked_for() -> None:
    assert exec_text("echo 1") == "echo 1"


def test_what_a_sandbox_does_not_have_is_refused() -> None:
    with pytest.raises(ExecRefused, match="the user 'postgres', and a sandbox has one user"):
        exec_text("id", user="postgres")
    with pytest.raises(ExecRefused, match="a variable with the name 'A B'"):
        exec_text("id", env={"A B": "1"})
