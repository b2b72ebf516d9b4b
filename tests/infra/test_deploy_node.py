"""What makes a machine a node: the script, its service, and the same by Compose."""

import os
import re
import shutil
import socket
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

from cli.operations.machine.embedded_stack import StackInfo
from mainspring.config.settings import Settings

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "infra" / "deploy"
SCRIPT = DEPLOY / "node.sh"
UNIT = DEPLOY / "mainspring-node.service"
PASSWORD = "s3same"
STAND_IN = f"""
import os, sys
def main():
    os.execv({sys.executable!r}, [{sys.executable!r}, "-m", "mainspring", *sys.argv[1:]])
"""


def node_sh(*arguments: object) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("MAINSPRING_")}
    return subprocess.run(
        [str(SCRIPT), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        env=clean | {"PIP_NO_INDEX": "1"},
    )


@pytest.fixture
def addresses() -> Iterator[list[str]]:
    """Options with two ports that listen."""
    local = ("127.0.0.1", 0)
    with socket.create_server(local) as one, socket.create_server(local) as two:
        yield [
            "--database-url",
            f"postgresql://mainspring:{PASSWORD}@127.0.0.1:{one.getsockname()[1]}/mainspring",
            "--temporal-address",
            f"127.0.0.1:{two.getsockname()[1]}",
        ]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A `mainspring` that pip can install without an index: it runs the one under test."""
    path = tmp_path_factory.mktemp("wheel") / "mainspring-0.0.1-py3-none-any.whl"
    about = "mainspring-0.0.1.dist-info"
    files = {
        "mainspring_stand_in.py": STAND_IN,
        f"{about}/METADATA": "Metadata-Version: 2.1\nName: mainspring\nVersion: 0.0.1\n"
        "Provides-Extra: swe\n",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{about}/entry_points.txt": "[console_scripts]\nmainspring = mainspring_stand_in:main\n",
    }
    files[f"{about}/RECORD"] = "".join(f"{name},,\n" for name in [*files, f"{about}/RECORD"])
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return path


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """This Python, with environments by virtualenv: in a tenth of the time `venv` takes."""
    folder = tmp_path_factory.mktemp("python")
    (folder / "python").write_text(
        f"""#!/bin/sh
if [ "$1 $2" = "-m venv" ]; then
    shift 2
    set -- -m virtualenv --quiet --no-periodic-update --app-data {folder}/data "$@"
fi
exec {sys.executable} "$@"
"""
    )
    (folder / "python").chmod(0o755)
    return folder / "python"


def test_dry_run_says_what_it_would_do_and_does_nothing(
    tmp_path: Path, addresses: list[str]
) -> None:
    said = node_sh("--dry-run", "--root", tmp_path, "--node-id", "n-1", *addresses)
    assert said.returncode == 0, said.stderr
    steps = said.stdout.splitlines()
    assert all(step.startswith("would ") for step in steps)
    assert [step.split()[1] for step in steps] == [
        "make",
        "install",
        "write",
        "ask",
        "put",
        "remove",
    ]
    assert f"{tmp_path}/etc/mainspring/node.env for node n-1" in said.stdout
    assert PASSWORD not in said.stdout + said.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("changed", "code", "message"),
    [
        ({"--database-url": None}, 2, "--database-url"),
        ({"--temporal-address": None}, 2, "--temporal-address"),
        ({"--database-url": "mysql://h/d"}, 2, "postgresql://user:password@host:port/name"),
        ({"--database-url": f"postgresql://u:{PASSWORD}@127.0.0.1:1/d"}, 1, "127.0.0.1:1"),
        ({"--database-url": f"postgresql://u:{PASSWORD}@127.0.0.1:1,127.0.0.1:2/d"}, 1, "1:1"),
        ({"--temporal-address": "127.0.0.1:1"}, 1, "Temporal does not answer at 127.0.0.1:1"),
        ({"--temporal-address": "host:port"}, 1, "address of Temporal cannot be read"),
        ({"--capacity": "many"}, 2, "many: not a whole number"),
        ({"--node-id": "it's"}, 2, "MAINSPRING_NODE_ID holds a single quote"),
        ({"--source": "/nowhere"}, 2, "/nowhere is no checkout, no wheel and no version"),
        ({"--python": "/bin/false"}, 2, "/bin/false is no Python 3.11 to 3.13"),
        ({"--env-file": "/nowhere"}, 2, "/nowhere cannot be read"),
        ({"--capacity": ""}, 2, "--capacity needs a value"),
        ({"--what": "x"}, 2, "unknown option --what"),
    ],
)
def test_what_is_wrong_is_said_in_one_line_before_anything_is_done(
    tmp_path: Path,
    addresses: list[str],
    changed: dict[str, str | None],
    code: int,
    message: str,
) -> None:
    options = dict(zip(addresses[::2], addresses[1::2], strict=True)) | changed
    given = [word for name, value in options.items() if value is not None for word in (name, value)]
    ended = node_sh("--root", tmp_path, *given)
    assert ended.returncode == code
    assert ended.stderr.count("\n") == 1 and ended.stderr.startswith("node.sh: ")
    assert message in ended.stderr and PASSWORD not in ended.stderr
    assert ended.stdout == "" and not list(tmp_path.iterdir())


@pytest.mark.skipif(Path("/run/systemd/system").exists(), reason="systemd runs here")
def test_without_systemd_it_names_the_other_ways(addresses: list[str]) -> None:
    ended = node_sh("--dry-run", *addresses)
    assert ended.returncode == 1
    assert "--no-service" in ended.stderr and "node.compose.yml" in ended.stderr


async def test_a_node_is_installed_upgraded_and_spared_a_bad_upgrade(
    tmp_path: Path, wheel: Path, python: Path, stack: StackInfo, fresh_database: str
) -> None:
    file = tmp_path / "given.env"
    file.write_text(
        f'# mine\nMAINSPRING_DATABASE_URL="{stack.database_url}"\n'
        f"MAINSPRING_TEMPORAL_NAMESPACE={stack.temporal_namespace}\n"
    )
    base = ("--root", tmp_path / "root", "--source", wheel, "--python", python)
    first = node_sh(
        *base, "--env-file", file, "--temporal-address", stack.temporal_address, "--node-id", "n-1"
    )
    assert first.returncode == 0, first.stdout + first.stderr
    config = tmp_path / "root/etc/mainspring/node.env"
    assert config.stat().st_mode & 0o777 == 0o600
    expected = {
        "MAINSPRING_DATABASE_URL": stack.database_url,
        "MAINSPRING_NODE_ID": "n-1",
        "MAINSPRING_TEMPORAL_ADDRESS": stack.temporal_address,
        "MAINSPRING_TEMPORAL_NAMESPACE": stack.temporal_namespace,
    }
    assert expected.items() <= variables(config).items()
    assert int(variables(config)["MAINSPRING_CAPACITY"]) >= 1
    venv = tmp_path / "root/opt/mainspring/venv"
    program = venv / "bin/mainspring"
    assert program.is_file()
    assert (tmp_path / "root/etc/systemd/system" / UNIT.name).read_text() == UNIT.read_text()

    old = venv.resolve()
    again = node_sh(*base, "--capacity", 7)
    assert again.returncode == 0, again.stdout + again.stderr
    assert variables(config) == {**variables(config), **expected, "MAINSPRING_CAPACITY": "7"}
    assert venv.resolve() != old and not old.exists()

    before = (config.read_text(), venv.resolve())
    refused = node_sh(*base, "--database-url", fresh_database)  # without our tables
    assert refused.returncode == 3
    assert "failed to ask `mainspring doctor`" in refused.stderr
    assert (config.read_text(), venv.resolve()) == before
    assert list(venv.parent.joinpath("venvs").iterdir()) == [venv.resolve()]
    assert [path.name for path in config.parent.iterdir()] == ["node.env"]


def variables(config: Path) -> dict[str, str]:
    """As a shell reads it, which is as systemd does."""
    said = subprocess.check_output(
        ["bash", "-c", 'set -a; . "$1"; env -0', "bash", str(config)], env={"PATH": os.defpath}
    )
    pairs = (item.split("=", 1) for item in said.decode().split("\0") if item)
    return {name: value for name, value in pairs if name.startswith("MAINSPRING_")}


def test_the_service_runs_a_command_the_program_has() -> None:
    command = re.search(r"^ExecStart=(.*)$", UNIT.read_text(), re.MULTILINE)
    assert command is not None
    program, *arguments = command[1].replace("${MAINSPRING_CAPACITY}", "3").split()
    assert program == "/opt/mainspring/venv/bin/mainspring"
    parse(arguments)


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd is not installed")
def test_systemd_accepts_the_service(tmp_path: Path) -> None:
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace("/opt/mainspring/venv/bin/mainspring", "/bin/true"))
    verified = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True
    )
    # Before systemd 254: it says that it goes on without.
    said = [line for line in verified.stderr.splitlines() if "DelegateSubgroup" not in line]
    assert verified.returncode == 0 and not any(UNIT.name in line for line in said), said


def test_compose_runs_a_node_that_the_example_describes() -> None:
    text = (DEPLOY / "node.compose.yml").read_text()
    services = yaml.safe_load(text)["services"]
    assert services.keys() == {"sandbox"}
    node = services["sandbox"]
    parse([re.sub(r"\$\{\w+:-(.*)\}", r"\1", word) for word in node["command"]])
    settings = {f"MAINSPRING_{name.upper()}" for name in Settings.model_fields}
    documented = set(re.findall(r"`([A-Z]+_\w+)`", (ROOT / "docs/variables.md").read_text()))
    others = node["environment"].keys() - settings
    assert all(name in documented or name.startswith("OTEL_EXPORTER_") for name in others)
    assert (DEPLOY / node["build"]["context"] / node["build"]["dockerfile"]).exists()
    example = (DEPLOY / "node.env.example").read_text()
    for name, default in re.findall(r"\$\{(\w+)(?::-([^}]*))?", text):
        assert f"{name}={default}" in example
    whole = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]["sandbox"]
    whole |= yaml.safe_load((DEPLOY / "compose.bubblewrap.yml").read_text())["services"]["sandbox"]
    for key in ("user", "cap_add", "security_opt", "command"):
        assert node[key] == whole[key], f"{key}: docker-compose.yml has another"


def parse(arguments: list[str]) -> None:
    """Raises when a command or an option is unknown."""
    from cli.main import app

    command: Any = typer.main.get_command(app)
    while hasattr(command, "commands"):
        word, *arguments = arguments
        command = command.commands[word]
    command.make_context(word, arguments)
