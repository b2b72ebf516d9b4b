"""Makes a bundle of a recipe with npm and pip, as they are configured on this machine.

Invariants: one process makes a bundle at a time, others wait and find it; it is made aside and
renamed when it is whole, and what a killed process left aside is removed by the next one; no
package's own scripts are run by npm. Imported by `mainspring agents add`.
"""

import fcntl
import os
import platform
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from infra.bundles.store import MANIFEST, Bundle, BundleMissing, BundleStore, Manifest, digest
from mainspring.errors import ConfigError, ServiceError
from mainspring.programs.recipes import Recipe

TIMEOUT_S = 1800.0
TAIL_CHARS = 500
CPUS = {"x86_64": "x64", "aarch64": "arm64"}
"""As npm names them."""
_HERE = Path(__file__).parent


class BundleBroken(ServiceError):
    """npm or pip did not install what a bundle needs."""


def add(store: BundleStore, recipe: Recipe) -> tuple[Bundle, bool]:
    """The bundle, and whether it was made now. Raises ConfigError, or BundleBroken."""
    store.folder.mkdir(parents=True, exist_ok=True)
    with _alone(store.folder / f".{recipe.bundle}.lock"):
        try:
            return store.find(recipe.bundle), False
        except BundleMissing:
            aside = store.folder / f".{recipe.bundle}.new"
            shutil.rmtree(aside, ignore_errors=True)
            aside.mkdir()
            try:
                _fill(aside, recipe)
                whole = store.folder / recipe.bundle
                if whole.exists():  # without a manifest: not ours, and nothing that was whole
                    shutil.rmtree(whole)
                aside.rename(whole)
            finally:
                shutil.rmtree(aside, ignore_errors=True)
            return store.find(recipe.bundle), True


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """The kernel lets go of it when its process ends."""
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield


def _fill(folder: Path, recipe: Recipe) -> None:
    machine = platform.machine()
    if machine not in CPUS:
        raise ConfigError(
            f"bundle {recipe.bundle}: no client is made for {machine}",
            remedy=f"make it on one of {', '.join(CPUS)}",
        )
    words = {"version": recipe.version, "cpu": CPUS[machine], "machine": machine}
    python = None
    npm = tuple(each.format(**words) for each in recipe.npm)
    pip = tuple(each.format(**words) for each in recipe.pip)
    if npm:
        _run(recipe, _npm(folder, npm))
    if pip:
        interpreter, python = _interpreter(recipe)
        _run(recipe, _pip(folder / "site", interpreter, pip))
        shutil.copyfile(_HERE / "run_python.py", folder / "run_python.py")
    (folder / "bin").mkdir()
    for name, start in recipe.programs.items():
        kind, _, what = start.format(**words).partition(":")
        if kind == "file":
            target = _only(folder, what, recipe)
            (folder / "bin" / name).symlink_to(Path("..", target))
            continue
        if kind == "node":
            node = _only(folder, f"node_modules/node-linux-{words['cpu']}/bin/node", recipe)
            values = {"NODE": node, "SCRIPT": _only(folder, what, recipe)}
            text = (_HERE / "run_node.sh").read_text()
        else:
            values = {"VERSION": str(python), "MODULE": what}
            text = (_HERE / "run_python.sh").read_text()
        for word, value in values.items():
            text = text.replace(f"${word}", str(value))
        (folder / "bin" / name).write_text(text)
        (folder / "bin" / name).chmod(0o755)
    _let_all_read(folder)
    manifest = Manifest(
        name=recipe.name,
        version=recipe.version,
        packages=(*npm, *pip),
        programs=tuple(recipe.programs),
        sha256=digest(folder),
        machine=machine,
        python=python,
        min_glibc=recipe.min_glibc,
    )
    (folder / MANIFEST).write_text(manifest.model_dump_json(indent=2) + "\n")


def _npm(folder: Path, packages: tuple[str, ...]) -> list[str]:
    quiet = ["--no-audit", "--no-fund", "--no-update-notifier", "--loglevel=error"]
    return ["npm", "install", "--ignore-scripts", *quiet, "--prefix", str(folder), *packages]


def _pip(folder: Path, interpreter: str, packages: tuple[str, ...]) -> list[str]:
    quiet = ["--quiet", "--disable-pip-version-check", "--no-input", "--no-warn-conflicts"]
    install = [interpreter, "-m", "pip", "install", *quiet, "--compile"]
    return [*install, "--target", str(folder), *packages]


def _run(recipe: Recipe, command: list[str]) -> None:
    # Python's files are to be compiled here, once: where the bundle is mounted nothing is written.
    environment = {**os.environ, "PIP_ROOT_USER_ACTION": "ignore"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    try:
        ran = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=TIMEOUT_S,
            env=environment,
            cwd="/",
            check=False,
        )
        code, said = ran.returncode, ran.stdout.decode(errors="replace").strip()
    except FileNotFoundError:
        code, said = 127, f"there is no {command[0]} on this machine"
    except subprocess.TimeoutExpired:
        code, said = 124, f"it took over {TIMEOUT_S:.0f} s"
    if code != 0:
        raise BundleBroken(
            f"bundle {recipe.bundle}: {Path(command[0]).name} ended with {code}: "
            f"{said[-TAIL_CHARS:]}",
            remedy="install Node's npm and pip, and let them reach their registries; or make the "
            "bundle on another machine and copy its folder",
        )


def _interpreter(recipe: Recipe) -> tuple[str, str]:
    """A Python that the recipe can use, this one if it fits, and its minor version."""
    least = _number(recipe.min_python or "3.10")
    most = _number(recipe.max_python or "3.99")
    own = sys.version_info[:2]
    if least <= own <= most:
        return sys.executable, f"{own[0]}.{own[1]}"
    for minor in range(least[1], min(most[1], least[1] + 4) + 1):
        found = shutil.which(f"python3.{minor}")
        if found and _runs([found, "-m", "pip", "--version"]):
            return found, f"3.{minor}"
    raise ConfigError(
        f"bundle {recipe.bundle} needs Python {recipe.min_python}"
        + (f" to {recipe.max_python}" if recipe.max_python else " or newer"),
        remedy=f"install python{recipe.min_python} with pip beside the one that runs Mainspring",
    )


def _runs(command: list[str]) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _number(version: str) -> tuple[int, int]:
    major, minor = version.split(".")
    return int(major), int(minor)


def _only(folder: Path, pattern: str, recipe: Recipe) -> Path:
    found = [path for path in folder.glob(pattern) if path.is_file()]
    if len(found) != 1:
        raise BundleBroken(
            f"bundle {recipe.bundle}: {len(found)} files match {pattern}, expected one",
            remedy=f"this version is packed in another way: try {recipe.name} at the known version",
        )
    return found[0].relative_to(folder)


def _let_all_read(folder: Path) -> None:
    """A sandbox's user is another one."""
    for top, folders, names in os.walk(folder):
        for path in (Path(top), *(Path(top) / each for each in (*folders, *names))):
            if not path.is_symlink():
                mode = stat.S_IMODE(path.stat().st_mode)
                runs = 0o111 if path.is_dir() or mode & 0o100 else 0
                path.chmod((mode | 0o444 | runs) & 0o755)
