"""docker-compose.yml: what it promises, held against the program it runs."""

import re
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml
from temporalio.common import SearchAttributeKey

from workflows import search

ROOT = Path(__file__).parents[2]
INFRASTRUCTURE = {"postgres", "temporal", "temporal-ui"}
ONE_SHOT = {"migrations", "temporal-setup"}
WORKERS = {"rollout", "sandbox", "trainer"}
_VARIABLE = re.compile(r"\$\{(\w+)(?:(:[-?])([^}]*))?\}")


def compose() -> dict[str, Any]:
    return yaml.safe_load((ROOT / "docker-compose.yml").read_text())


def services() -> dict[str, dict[str, Any]]:
    return compose()["services"]


def ours() -> list[str]:
    return sorted(name for name, service in services().items() if "build" in service)


def filled(text: str) -> str:
    """As compose fills it in: defaults where there are, an example for what must be set."""
    return _VARIABLE.sub(
        lambda match: match[3] if match[2] == ":-" else match[1].lower().replace("_", "-"), text
    )


def test_every_part_is_there() -> None:
    engines = {"engine", "engine-cpu"}
    assert services().keys() == INFRASTRUCTURE | ONE_SHOT | WORKERS | engines | {"tools"}
    by_default = {name for name, service in services().items() if "profiles" not in service}
    assert by_default == INFRASTRUCTURE | ONE_SHOT | WORKERS
    assert services()["engine"]["profiles"] == ["gpu"]


@pytest.mark.parametrize("name", ours())
def test_command_is_one_the_program_has(name: str) -> None:
    from mainspring.cli.main import app

    arguments = [filled(argument) for argument in services()[name]["command"]]
    command: Any = typer.main.get_command(app)
    while hasattr(command, "commands"):
        word, *arguments = arguments
        assert word in command.commands, f"{name}: no command {word!r}"
        command = command.commands[word]
    # Raises when an option is unknown, lacks its value, or a required one is missing.
    command.make_context(name, arguments)


@pytest.mark.parametrize("name", sorted(WORKERS))
def test_workers_start_after_the_schema_and_temporal(name: str) -> None:
    worker = services()[name]
    assert worker["depends_on"] == {
        "migrations": {"condition": "service_completed_successfully"},
        "temporal-setup": {"condition": "service_completed_successfully"},
    }
    assert worker["restart"] == "unless-stopped"


def test_dependencies_can_be_met() -> None:
    for name, service in services().items():
        for needed, how in service.get("depends_on", {}).items():
            other = services()[needed]
            if how["condition"] == "service_healthy":
                assert "healthcheck" in other, f"{name} waits for {needed}, which never says so"
            if how["condition"] == "service_completed_successfully":
                assert "restart" not in other, f"{name} waits for {needed}, which never ends"


def test_long_running_services_come_back() -> None:
    for name, service in services().items():
        if name not in ONE_SHOT | {"tools"}:
            assert service.get("restart") == "unless-stopped", name


def test_ports_are_bound_to_loopback() -> None:
    ports = [port for service in services().values() for port in service.get("ports", [])]
    assert len(ports) == 5
    assert all(str(port).startswith("127.0.0.1:") for port in ports)


def test_secrets_have_no_default_and_are_in_the_example() -> None:
    text = (ROOT / "docker-compose.yml").read_text()
    example = (ROOT / "infra/deploy/env.example").read_text()
    variables = set(_VARIABLE.findall(text))
    for name, operator, _ in variables:
        if "PASSWORD" in name or "KEY" in name:
            assert operator == ":?", f"{name} has a default"
        assert operator in (":?", ":-"), f"{name} may be empty"
        assert f"{name}=" in example or name == "MAINSPRING_TAG", f"{name} is not in env.example"
    for name, operator, default in variables:
        if operator == ":-" and name != "MAINSPRING_TAG":
            assert f"{name}={default}" in example, f"{name}: the example has another default"


def test_environment_names_settings() -> None:
    from mainspring.settings import Settings

    known = {f"MAINSPRING_{field.upper()}" for field in Settings.model_fields}
    for name in ours():
        assert services()[name]["environment"].keys() <= known, name


def test_registered_search_attributes_are_those_the_workflows_set() -> None:
    command = services()["temporal-setup"]["command"]
    registered = dict(
        zip(
            (word.removeprefix("--name=") for word in command[::2]),
            (word.removeprefix("--type=") for word in command[1::2]),
            strict=True,
        )
    )
    keys = [value for value in vars(search).values() if isinstance(value, SearchAttributeKey)]
    assert registered == {
        key.name: key.indexed_value_type.name.title().replace("_", "") for key in keys
    }


def test_image_holds_every_package() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    ignore = (ROOT / "infra/deploy/Dockerfile.dockerignore").read_text().split()
    packages = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert {f"!{package}" for package in packages} <= set(ignore)
    assert all((ROOT / volume).exists() for volume in ("infra/deploy/Dockerfile", "LICENSE"))


def test_named_volumes_are_declared() -> None:
    declared = compose()["volumes"].keys()
    for name, service in services().items():
        for volume in service.get("volumes", []):
            source = filled(volume).split(":")[0]
            # Of the host there is nothing but what .env names.
            assert source in declared or source == "/dev/null", f"{name}: {volume}"
