"""Makes a bundle of a recipe with npm and pip, as they are configured on this machine.

Invariants: one process makes a bundle at a time, others wait and find it; it is made aside and
renamed when it is whole, and what a killed process left aside is removed by the next one; no
package's own scripts are run by npm; where the recipe has a lock file, nothing is installed that is
not in it. Imported by `mainspring agents add`.
"""

import fcntl
import json
import os
import platform
import shutil
import stat
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from infra.bundles import interpreter
from infra.bundles.locks import CPUS, QUIET_NPM, npm_lock, packages, pip_lock
from infra.bundles.store import MANIFEST, Bundle, BundleManifest, BundleMissing, BundleStore, digest
from mainspring.errors import ConfigError, ServiceError
from mainspring.programs.recipes import Recipe

TIMEOUT_S = 1800.0
END_CHARS = 300
"""Characters of what npm or pip said, from each end: npm tells first what is wrong, pip last."""
LOADERS = {"x86_64": "/lib64/ld-linux-x86-64.so.2", "aarch64": "/lib/ld-linux-aarch64.so.1"}
"""Where every image with glibc has its loader; an image with musl has another one."""
_HERE = Path(__file__).parent


class BundleBroken(ServiceError):
    """npm or pip did not install what a bundle needs."""


def add(store: BundleStore, recipe: Recipe) -> tuple[Bundle, bool]:
    """The bundle, and whether it was made now. Raises ConfigError, or BundleBroken."""
    try:
        store.folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"bundle {recipe.bundle} cannot be made in {store.folder}: {error.strerror}",
            remedy="set MAINSPRING_AGENTS_DIR to a folder that this user can write to",
        ) from None
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
    with lock.open("w") as lock_file:
        fcntl.flock(lock_file, fcntl.LOCK_EX)
        yield


def _fill(folder: Path, recipe: Recipe) -> None:
    machine = platform.machine()
    if machine not in CPUS:
        raise ConfigError(
            f"bundle {recipe.bundle}: no client is made for {machine}",
            remedy=f"make it on one of {', '.join(CPUS)}",
        )
    words = {"version": recipe.version, "cpu": CPUS[machine], "machine": machine}
    python, min_glibc = None, recipe.min_glibc
    npm = packages(recipe.npm, recipe, machine)
    pip = packages(recipe.pip, recipe, machine)
    if npm:
        _run(recipe, _npm(folder, npm, npm_lock(recipe)))
    if pip:
        original = interpreter.find(recipe)
        python = original.version
        _run(recipe, _pip(folder / "site", original.path, pip, pip_lock(recipe)))
        shutil.copyfile(_HERE / "run_python.py", folder / "run_python.py")
        min_glibc = interpreter.copy(original, folder)
    (folder / "bin").mkdir()
    values = {
        "VERSION": str(python),
        "GLIBC": str(min_glibc),
        "LOADER": LOADERS[machine],
    }
    for name, start in recipe.programs.items():
        kind, _, target = start.format(**words).partition(":")
        if kind == "python":
            _write_starter(folder / "bin" / name, "run_python.sh", {**values, "MODULE": target})
            continue
        program = _only(folder, target, recipe)
        if kind == "node":
            node = _only(folder, f"node_modules/node-linux-{words['cpu']}/bin/node", recipe)
            starter_values = {**values, "NODE": str(node), "SCRIPT": str(program)}
            _write_starter(folder / "bin" / name, "run_node.sh", starter_values)
        elif min_glibc is None:  # it needs nothing of the image
            (folder / "bin" / name).symlink_to(Path("..", program))
        else:
            starter_values = {**values, "PROGRAM": str(program)}
            _write_starter(folder / "bin" / name, "run_file.sh", starter_values)
    _let_all_read(folder)
    manifest = BundleManifest(
        name=recipe.name,
        version=recipe.version,
        packages=(*npm, *pip),
        programs=tuple(recipe.programs),
        sha256=digest(folder),
        machine=machine,
        python=python,
        min_glibc=min_glibc,
        is_locked=_is_locked(recipe),
    )
    (folder / MANIFEST).write_text(manifest.model_dump_json(indent=2) + "\n")


def _write_starter(path: Path, template: str, values: dict[str, str]) -> None:
    text = (_HERE / template).read_text()
    for word, value in values.items():
        text = text.replace(f"${word}", value)
    path.write_text(text)
    path.chmod(0o755)


def _npm(folder: Path, names: tuple[str, ...], lock: Path | None) -> list[str]:
    common = ["--ignore-scripts", *QUIET_NPM, "--prefix", str(folder)]
    if lock is None:
        return ["npm", "install", *common, *names]
    text = lock.read_text()
    project = json.loads(text)["packages"][""]
    (folder / "package.json").write_text(json.dumps(project))
    (folder / "package-lock.json").write_text(text)
    return ["npm", "ci", *common]


def _pip(folder: Path, python: str, names: tuple[str, ...], lock: Path | None) -> list[str]:
    quiet = ["--quiet", "--disable-pip-version-check", "--no-input", "--no-warn-conflicts"]
    install = [python, "-m", "pip", "install", *quiet, "--compile", "--target", str(folder)]
    if lock is None:
        return [*install, *names]
    return [*install, "--require-hashes", "--no-deps", "--requirement", str(lock)]


def _is_locked(recipe: Recipe) -> bool:
    """All that npm and pip installed."""
    return (not recipe.npm or npm_lock(recipe) is not None) and (
        not recipe.pip or pip_lock(recipe) is not None
    )


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
        code, output = ran.returncode, ran.stdout.decode(errors="replace").strip()
    except FileNotFoundError:
        code, output = 127, f"there is no {command[0]} on this machine"
    except subprocess.TimeoutExpired:
        code, output = 124, f"it took over {TIMEOUT_S:.0f} s"
    if code != 0:
        if len(output) > 2 * END_CHARS:
            output = f"{output[:END_CHARS]} ... {output[-END_CHARS:]}"
        raise BundleBroken(
            f"bundle {recipe.bundle}: {Path(command[0]).name} ended with {code}: {output}",
            remedy="install Node's npm and pip, and let them reach their registries; or make the "
            "bundle on another machine and copy its folder",
        )


def _only(folder: Path, pattern: str, recipe: Recipe) -> Path:
    matches = [path for path in folder.glob(pattern) if path.is_file()]
    if len(matches) != 1:
        raise BundleBroken(
            f"bundle {recipe.bundle}: {len(matches)} files match {pattern}, expected one",
            remedy=f"this version is packed in another way: try {recipe.name} at the known version",
        )
    return matches[0].relative_to(folder)


def _let_all_read(folder: Path) -> None:
    """A sandbox's user is another one."""
    for top, folders, names in os.walk(folder):
        for path in (Path(top), *(Path(top) / name for name in (*folders, *names))):
            if not path.is_symlink():
                mode = stat.S_IMODE(path.stat().st_mode)
                runs = 0o111 if path.is_dir() or mode & 0o100 else 0
                path.chmod((mode | 0o444 | runs) & 0o755)
