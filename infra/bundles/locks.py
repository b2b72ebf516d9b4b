"""Lock files: every package that a recipe brings, with its version and the hashes of its files.

They lie in `locks`, beside this file, one for each recipe at its known version: `.json` for npm, as
package-lock.json has it, `.txt` for pip. Invariant: no address of a registry stands in them.
`make locks` writes them anew. Imported by `build`; run as a program it writes those it is given.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mainspring.programs.recipes import Recipe, recipe_of, recipes

CPUS = {"x86_64": "x64", "aarch64": "arm64"}
"""As npm names them."""
QUIET_NPM = ("--no-audit", "--no-fund", "--no-update-notifier", "--loglevel=error")
_FOLDER = Path(__file__).parent / "locks"
_UNUSED = ("resolved", "funding", "deprecated")


def npm_lock(recipe: Recipe) -> Path | None:
    return _lock(recipe, "json")


def pip_lock(recipe: Recipe) -> Path | None:
    return _lock(recipe, "txt")


def _lock(recipe: Recipe, ending: str) -> Path | None:
    path = _FOLDER / f"{recipe.bundle}.{ending}"
    return path if path.exists() else None


def packages(listed: Sequence[str], recipe: Recipe, machine: str) -> tuple[str, ...]:
    """As npm or pip is asked for them on that machine."""
    words = {"version": recipe.version, "cpu": CPUS[machine], "machine": machine}
    return tuple(package.format(**words) for package in listed)


def npm_project(recipe: Recipe) -> dict[str, Any]:
    """The package.json that the lock is of: what only one machine can have is optional."""
    by_machine = {machine: packages(recipe.npm, recipe, machine) for machine in CPUS}
    of_all = [
        package for package in recipe.npm if "{cpu}" not in package and "{machine}" not in package
    ]
    everywhere = packages(of_all, recipe, next(iter(CPUS)))
    of_one = {package for listed in by_machine.values() for package in listed} - set(everywhere)
    return {
        "name": "bundle",
        "version": "0.0.0",
        "dependencies": _versions(everywhere),
        "optionalDependencies": _versions(sorted(of_one)),
    }


def _versions(specs: Sequence[str]) -> dict[str, str]:
    parts = (spec.rpartition("@") for spec in specs)
    return {name: version for name, _, version in parts}


def write_locks(names: Sequence[str]) -> None:
    """Lock the known versions of these clients, resolved now. Raises CalledProcessError."""
    _FOLDER.mkdir(exist_ok=True)
    for recipe in map(recipe_of, names):
        for old in _FOLDER.glob(f"{recipe.name}-[0-9]*"):
            old.unlink()
        with tempfile.TemporaryDirectory(prefix="mainspring-locks-") as aside:
            if recipe.npm:
                text = _npm_text(recipe, Path(aside))
                (_FOLDER / f"{recipe.bundle}.json").write_text(text)
            if recipe.pip:
                text = _pip_text(recipe, Path(aside))
                (_FOLDER / f"{recipe.bundle}.txt").write_text(text)
        print(f"{recipe.bundle}: locked")


def _npm_text(recipe: Recipe, folder: Path) -> str:
    (folder / "package.json").write_text(json.dumps(npm_project(recipe)))
    command = ["npm", "install", "--package-lock-only", "--ignore-scripts", *QUIET_NPM]
    subprocess.run(command, cwd=folder, check=True)
    lock = json.loads((folder / "package-lock.json").read_text())
    names = {name.rpartition("node_modules/")[2] for name in lock["packages"]}
    for package in lock["packages"].values():
        for field in _UNUSED:
            package.pop(field, None)
        # Of other systems; `npm ci` refuses a lock that names what it does not hold.
        if optional := package.get("optionalDependencies"):
            package["optionalDependencies"] = {
                name: version for name, version in optional.items() if name in names
            }
    return json.dumps(lock, indent=1) + "\n"


def _pip_text(recipe: Recipe, folder: Path) -> str:
    requirements = folder / "wanted.txt"
    requirements.write_text("\n".join(packages(recipe.pip, recipe, next(iter(CPUS)))) + "\n")
    python = ["--universal", "--python-version", recipe.min_python or "3.10"]
    bare = ["--no-header", "--no-annotate", "--no-emit-index-url", "--no-emit-find-links"]
    # Not its own settings: the index is the one that pip is told of, or PyPI.
    command = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--no-config", *python]
    command += [*bare, "--generate-hashes", str(requirements)]
    ran = subprocess.run(
        command, env={**os.environ, **_index()}, stdout=subprocess.PIPE, text=True, check=True
    )
    return ran.stdout


def _index() -> Mapping[str, str]:
    question = [sys.executable, "-m", "pip", "config", "get", "global.index-url"]
    ran = subprocess.run(question, capture_output=True, text=True, check=False)
    return {"UV_DEFAULT_INDEX": ran.stdout.strip()} if ran.returncode == 0 else {}


if __name__ == "__main__":
    write_locks(sys.argv[1:] or list(recipes()))
