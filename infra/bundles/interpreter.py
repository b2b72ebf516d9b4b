"""The Python of a bundle: found on this machine, and copied into the bundle.

Invariants: the copy needs nothing outside of the bundle but libc; it is of the minor version that
the packages are made for, and it has started once before the bundle is whole. Imported by `build`.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mainspring.errors import ConfigError, ServiceError
from mainspring.programs.recipes import Recipe

FOLDER = "python"
"""In the bundle; what Python calls its prefix."""
_OFTEN = (
    ("PYENV_ROOT", "~/.pyenv", "versions/*/bin"),
    ("UV_PYTHON_INSTALL_DIR", "~/.local/share/uv/python", "*/bin"),
)
"""Variable, what it is by default, and below it where Pythons are that no PATH leads to."""
_FACTS = (
    "import json, sys, sysconfig; print(json.dumps([sys._base_executable, "
    "sysconfig.get_path('stdlib'), sysconfig.get_config_var('LIBDIR')]))"
)
_LEFT_OUT = (
    *("test", "tests", "site-packages", "dist-packages", "idlelib", "lib2to3", "tkinter"),
    *("turtledemo", "ensurepip", "config-*", "*.a", "*.opt-?.pyc"),
    *("_tkinter*", "_test*.so", "_ctypes_test*.so", "_xx*.so", "xx*.so"),
)
"""Parts of the standard library that no client needs: half of it."""
_OF_LIBC = re.compile(r"(ld-|libc\.|libm\.|libdl\.|libpthread\.|librt\.|libutil\.|libresolv\.)")
_LOADED = re.compile(r"^\s*(\S+) => (/\S+) \(0x", re.MULTILINE)
_GLIBC = re.compile(rb"GLIBC_2\.(\d+)")


class InterpreterBroken(ServiceError):
    """The Python of this machine cannot be copied."""


@dataclass(frozen=True, slots=True)
class Interpreter:
    path: str
    version: str
    """Minor version, as 3.12."""


def find(recipe: Recipe) -> Interpreter:
    """A Python with pip that the recipe can use, this one if it fits. Raises ConfigError."""
    least = _number(recipe.min_python or "3.10")
    most = _number(recipe.max_python or "3.99")
    own = sys.version_info[:2]
    if least <= own <= most:
        return Interpreter(sys.executable, f"{own[0]}.{own[1]}")
    for minor in range(least[1], min(most[1], least[1] + 4) + 1):
        for path in _named(f"python3.{minor}"):
            if _runs([path, "-m", "pip", "--version"]):
                return Interpreter(path, f"3.{minor}")
    raise ConfigError(
        f"bundle {recipe.bundle} needs Python {recipe.min_python}"
        + (f" to {recipe.max_python}" if recipe.max_python else " or newer")
        + ", and this machine has none with pip",
        remedy=f"install python{recipe.min_python} with pip beside the one that runs Mainspring",
    )


def copy(interpreter: Interpreter, bundle: Path) -> str:
    """Into `bundle`; the glibc that it needs. Raises InterpreterBroken."""
    program, stdlib, libdir = (
        Path(path) for path in json.loads(_said([interpreter.path, "-I", "-c", _FACTS]))
    )
    top = bundle / FOLDER
    name = f"python{interpreter.version}"
    shutil.copytree(
        stdlib,
        top / "lib" / name,
        ignore=shutil.ignore_patterns(*_LEFT_OUT),
        ignore_dangling_symlinks=True,
    )
    (top / "bin").mkdir()
    shutil.copy2(program, top / "bin" / name)
    again = (Path(__file__).parent / "run_again.sh").read_text()
    (top / "bin/again").write_text(again.replace("$VERSION", interpreter.version))
    (top / "bin/again").chmod(0o755)
    for library in _libraries([program, *(top / "lib" / name).glob("lib-dynload/*.so")], libdir):
        shutil.copy2(library, top / "lib")
    # Compiled here, once: where the bundle is mounted nothing is written.
    compiling = ["-I", "-S", "-m", "compileall", "-q", str(top / "lib" / name)]
    _said([str(top / "bin" / name), *compiling], library_path=top / "lib")
    return _min_glibc(top)


def _named(name: str) -> Iterator[str]:
    on_path = shutil.which(name)
    if on_path:
        yield on_path
    for variable, default, below in _OFTEN:
        root = Path(os.environ.get(variable) or default).expanduser()
        yield from sorted(str(path) for path in root.glob(f"{below}/{name}"))


def _libraries(files: list[Path], libdir: Path) -> set[Path]:
    """That the loader finds for these files, but libc's own."""
    listing = _said(["ldd", *map(str, files)], library_path=libdir)
    libraries = {name: Path(path) for name, path in _LOADED.findall(listing)}
    return {path for name, path in libraries.items() if not _OF_LIBC.match(name)}


def _min_glibc(folder: Path) -> str:
    """The newest version that a program or library names."""
    files = [*folder.glob("bin/*"), *folder.rglob("*.so"), *folder.rglob("*.so.*")]
    minors = [int(minor) for path in files for minor in _GLIBC.findall(path.read_bytes())]
    return f"2.{max(minors, default=17)}"


def _said(command: list[str], library_path: Path | None = None) -> str:
    environment = dict(os.environ)
    if library_path is not None:
        environment["LD_LIBRARY_PATH"] = str(library_path)
    try:
        ran = subprocess.run(
            command, capture_output=True, text=True, env=environment, check=False, cwd="/"
        )
        code, output, message = ran.returncode, ran.stdout, f"{ran.stdout}{ran.stderr}"
    except FileNotFoundError:
        code, output, message = 127, "", "it is not on this machine"
    if code != 0:
        raise InterpreterBroken(
            f"Python cannot be copied into a bundle: {command[0]} ended with {code}: "
            f"{message.strip()[-300:]}",
            remedy="install a Python for Linux with glibc, from a package or built from source",
        )
    return output


def _runs(command: list[str]) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _number(version: str) -> tuple[int, int]:
    major, minor = version.split(".")
    return int(major), int(minor)
