"""Harbor tasks: a folder with `task.toml`, `instruction.md`, `environment/`, `tests/`, `solution/`.

Where the task runs, in this order: the image that task.toml names; else, when `environment/` is
nothing but text files (a `files/` tree without a Dockerfile, or a Dockerfile that has only FROM,
WORKDIR and COPY into the WORKDIR), those files, so that no image and no Docker is needed; else an
image named by rule, `mainspring-harbor/<task>`, which has to be built from `environment/`.
The verifier's folder is /tests, outside of the repository: keys of `SweTask.tests` are absolute.
Imported by `resolve`.
"""

import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from infra.sources.fields import build_task, text_or
from infra.sources.image_rules import image_for
from infra.sources.protocol import ImportOptions, Place, RowError, RowProblem, SourceRow
from infra.sources.rows import DEFAULT_SPLIT
from infra.sources.task_folder import is_executable, list_tree, read_text, read_tree
from mainspring.tasks.any_task import AnyTask
from mainspring.tasks.criterion import RewardFile

TASK_FILE = "task.toml"
TESTS_DIR = "/tests"
TEST_SCRIPT = "test.sh"
VERIFIER_TIMEOUT_S = 600.0
"""Harbor's own default."""
DEFAULT_WORKDIR = "/app"
"""Where Harbor's own examples work; for tasks without a Dockerfile."""
SOLVE = "solve.sh"
_VARIABLE = re.compile(r"[A-Za-z_]\w*", re.ASCII)
IMAGE_RULE = "mainspring-harbor/{id}"


class HarborSource:
    """One task's folder, or a folder of such."""

    def __init__(self, path: Path, options: ImportOptions) -> None:
        self._path = path
        self._options = options

    def rows(self) -> Iterator[SourceRow]:
        path = self._path.resolve()
        alone = (path / TASK_FILE).is_file()
        folders = [path] if alone else sorted(file.parent for file in path.glob(f"*/{TASK_FILE}"))
        source = self._options.name or (path.parent if alone else path).name
        for folder in folders:
            try:
                result = _read(folder, source, self._options)
            except RowError as error:
                result = error
            yield SourceRow(Place(str(folder)), folder.name, result)


def _read(folder: Path, source: str, options: ImportOptions) -> AnyTask:
    try:
        config = tomllib.loads(read_text(folder / TASK_FILE))
    except tomllib.TOMLDecodeError as error:
        raise RowError(RowProblem.WRONG_TYPE, f"{TASK_FILE}: {error}") from None
    except RecursionError:
        raise RowError(RowProblem.WRONG_TYPE, f"{TASK_FILE}: it is nested too deeply") from None
    _refuse_unsupported(folder, config)
    environment, verifier = _section(config, "environment"), _section(config, "verifier")
    tests = read_tree(folder / "tests")
    if TEST_SCRIPT not in tests:
        raise RowError(RowProblem.MISSING_FIELD, f"tests/{TEST_SCRIPT} is missing")
    metadata = _section(config, "metadata")
    return build_task(
        {
            "id": folder.name,
            "source": source,
            "split": options.split or DEFAULT_SPLIT,
            "issue": read_text(folder / "instruction.md"),
            "tests": {f"{TESTS_DIR}/{path}": content for path, content in tests.items()},
            "test_command": _exports(config, "verifier") + f"bash {TESTS_DIR}/{TEST_SCRIPT}",
            "test_timeout_s": verifier.get("timeout_sec", VERIFIER_TIMEOUT_S),
            "judge": RewardFile(),
            "solution": _solution(folder, config),
            "variables": _variables(config, "environment"),
            "metadata": {key: value for key, value in metadata.items() if isinstance(value, str)},
            **_where(folder, environment, options),
        },
        options,
    )


def _refuse_unsupported(folder: Path, config: dict[str, Any]) -> None:
    if config.get("steps"):
        raise RowError(RowProblem.UNSUPPORTED, f"{TASK_FILE}: tasks of several steps are not run")
    if list((folder / "environment").glob("docker-compose.y*ml")):
        raise RowError(RowProblem.UNSUPPORTED, "environment/ is several containers, not one")


def _where(folder: Path, environment: dict[str, Any], options: ImportOptions) -> dict[str, object]:
    """`image` or `files`, and `workdir`."""
    place = folder / "environment"
    dockerfile = place / "Dockerfile"
    lines = _instructions(read_text(dockerfile)) if dockerfile.is_file() else []
    workdir = PurePosixPath("/")
    for word, rest in lines:
        workdir = workdir / rest.strip("\"'") if word == "WORKDIR" else workdir
    if not any(word == "WORKDIR" for word, _ in lines):
        workdir = PurePosixPath(DEFAULT_WORKDIR)
    if options.image_template is None and not text_or(environment, "docker_image", ""):
        tree = _copied(place, lines, workdir) if lines else list_tree(place / "files")
        if tree:
            return {
                "files": {path: read_text(file) for path, file in tree.items()},
                "executables": [path for path, file in tree.items() if is_executable(file)],
                "workdir": str(workdir),
            }
        if not lines:
            raise RowError(
                RowProblem.NO_IMAGE,
                "there is neither an image, nor environment/Dockerfile, nor environment/files/",
                remedy=f"name the image in {TASK_FILE}: [environment] docker_image",
            )
        environment = {"docker_image": IMAGE_RULE.format(id=_image_path(folder.name))}
    image = image_for(environment, folder.name, None, options.image_template)
    return {"image": image, "workdir": str(workdir)}


def _copied(
    place: Path, lines: list[tuple[str, str]], workdir: PurePosixPath
) -> dict[str, Path] | None:
    """The repository, by path, that the Dockerfile only copies together; None when it does anything
    else."""
    if not {word for word, _ in lines} <= {"FROM", "WORKDIR", "COPY"}:
        return None
    if [word for word, _ in lines].count("FROM") != 1:
        return None
    files: dict[str, Path] = {}
    for word, rest in lines:
        if word != "COPY":
            continue
        words = shlex.split(rest)
        if len(words) < 2 or any(
            argument.startswith(("-", "[")) or "*" in argument for argument in words
        ):
            return None
        *sources, destination = words
        target = workdir / destination
        if not target.is_relative_to(workdir) or ".." in target.parts:
            return None
        below = target.relative_to(workdir)
        for source in sources:
            path = place / source.lstrip("/")
            if path.is_dir():
                tree = {below / name: file for name, file in list_tree(path).items()}
            elif destination.endswith("/") or destination in (".", "./") or target == workdir:
                tree = {below / path.name: path}
            else:
                tree = {below: path}
            files |= {str(target_path): file for target_path, file in tree.items()}
    return {path: file for path, file in files.items() if path != "Dockerfile"}


def _instructions(dockerfile: str) -> list[tuple[str, str]]:
    """Split a Dockerfile into pairs of instruction and arguments."""
    joined = re.sub(r"\\\r?\n", " ", re.sub(r"(?m)^\s*#.*$", "", dockerfile))
    words = (line.strip().partition(" ") for line in joined.splitlines() if line.strip())
    return [(word.upper(), rest.strip()) for word, _, rest in words]


def _variables(config: dict[str, Any], name: str) -> dict[str, str]:
    """Variables of its own `env`. Raises RowError for what only the person's machine knows."""
    section = _section(config, name)
    env = _section(section, "env", of=f"{name}.env")
    for variable, value in env.items():
        if not isinstance(value, str | int | float) or not _VARIABLE.fullmatch(variable):
            raise RowError(
                RowProblem.WRONG_TYPE,
                f"{TASK_FILE}: [{name}.env] {variable[:60]!r} must be a variable's name, with text",
            )
        if "${" in str(value):
            raise RowError(
                RowProblem.UNSUPPORTED,
                f"{TASK_FILE}: [{name}.env] {variable} asks for this machine's variables",
                remedy="write its value into a copy of the task",
            )
    return {variable: str(value) for variable, value in env.items()}


def _exports(config: dict[str, Any], name: str) -> str:
    variables = _variables(config, name)
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in variables.items())


def _solution(folder: Path, config: dict[str, Any]) -> dict[str, str]:
    """With [solution.env] set by its script, the only command that gets it."""
    solution = read_tree(folder / "solution")
    if SOLVE in solution:
        solution[SOLVE] = _exports(config, "solution") + solution[SOLVE]
    return solution


def _section(config: dict[str, Any], name: str, *, of: str = "") -> dict[str, Any]:
    section = config.get(name, {})
    if not isinstance(section, dict):
        raise RowError(RowProblem.WRONG_TYPE, f"{TASK_FILE}: {of or name} must be a section")
    return section


def _image_path(name: str) -> str:
    """The name as a registry may spell it."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
