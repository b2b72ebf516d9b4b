"""Files into a rollout's sandbox and out of it, by its commands alone.

Invariant: a file arrives whole or an error is raised; what a command prints is bounded by the
sandbox, so files travel in pieces. Needs bash, base64, tar, head and tail in the sandbox. Knows
nothing of Harbor. Imported by the environment beside this file.
"""

import base64
import binascii
import io
import itertools
import shlex
import tarfile
from pathlib import Path

from mainspring.errors import WorkFailed
from mainspring.programs.functions import FunctionSandbox, Ran

IN_BYTES = 512 << 10
"""Size of one piece into the sandbox."""
OUT_BYTES = 256 << 10
"""Size of the first piece out of it; smaller ones follow where a sandbox keeps less output."""
MIN_OUT_BYTES = 256
_PACKED = "/tmp/.mainspring-files"


class FileNotMoved(WorkFailed):
    """A file or a folder could not be copied into or out of a sandbox."""


class SandboxFiles:
    def __init__(self, sandbox: FunctionSandbox) -> None:
        self._sandbox = sandbox
        self._numbers = itertools.count()
        self._out_bytes = OUT_BYTES

    async def put(self, content: bytes, target: str, mode: int = 0o644) -> None:
        """Folders above it are made; a file that exists is replaced."""
        part = shlex.quote(f"{target}.mainspring-part")
        folder = shlex.quote(str(Path(target).parent))
        await self._do(f"mkdir -p {folder} && : > {part}", target)
        for at in range(0, len(content), IN_BYTES):
            packed = base64.b64encode(content[at : at + IN_BYTES]).decode()
            await self._do(f"base64 -d >> {part} <<'END'\n{packed}\nEND", target)
        await self._do(f"chmod {mode:o} {part} && mv -f {part} {shlex.quote(target)}", target)

    async def get(self, source: str) -> bytes:
        path = shlex.quote(source)
        counted = await self._do(f"[ -f {path} ] && wc -c < {path}", source)
        size, content = int(counted.output), bytearray()
        while len(content) < size:
            piece_bytes = min(self._out_bytes, size - len(content))
            ran = await self._do(
                f"tail -c +{len(content) + 1} {path} | head -c {piece_bytes} | base64", source
            )
            if ran.truncated and self._out_bytes > MIN_OUT_BYTES:
                self._out_bytes //= 2
                continue
            content += _decoded(ran, piece_bytes, source)
        return bytes(content)

    async def put_folder(self, source: Path, target: str) -> None:
        """Copy a folder; what the target holds beside stays."""
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as archive:
            archive.add(source, arcname=".")
        name, folder = self._packed(), shlex.quote(target)
        await self.put(packed.getvalue(), name)
        await self._do(
            f"mkdir -p {folder} && tar -xf {name} -C {folder} --no-same-owner && rm -f {name}",
            target,
        )

    async def get_folder(self, source: str, target: Path) -> None:
        """Files, folders and links; what is neither, or leads out of the folder, is left out."""
        name = self._packed()
        await self._do(f"tar -cf {name} -C {shlex.quote(source)} .", source)
        content = await self.get(name)
        await self._do(f"rm -f {name}", source)
        target.mkdir(parents=True, exist_ok=True)
        with tarfile.open(fileobj=io.BytesIO(content)) as archive:
            archive.extractall(target, filter=_without_what_is_no_content)

    async def _do(self, command: str, path: str) -> Ran:
        """Raises FileNotMoved."""
        ran = await self._sandbox.run(command)
        if ran.returncode != 0:
            output = " ".join(ran.output.split())[-300:] or "nothing"
            raise FileNotMoved(
                f"{path} of the sandbox cannot be copied (exit code {ran.returncode}): {output}",
                remedy="look whether it is there, and whether the sandbox has room",
            )
        return ran

    def _packed(self) -> str:
        return f"{_PACKED}-{next(self._numbers)}.tar"


def _decoded(ran: Ran, num_bytes: int, path: str) -> bytes:
    """Raises FileNotMoved."""
    try:
        content = base64.b64decode("".join(ran.output.split()), validate=True)
    except binascii.Error:
        content = b""
    if len(content) != num_bytes:
        raise FileNotMoved(
            f"{path} of the sandbox cannot be copied: it changed meanwhile, or the output is cut",
            remedy="set sandbox.output_bytes to 4096 or more",
        )
    return content


def _without_what_is_no_content(member: tarfile.TarInfo, path: str) -> tarfile.TarInfo | None:
    if not (member.isfile() or member.isdir() or member.issym() or member.islnk()):
        return None
    try:
        return tarfile.data_filter(member, path)
    except tarfile.FilterError:
        return None
