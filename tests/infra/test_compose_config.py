"""What `docker compose config` makes of docker-compose.yml, its override and a node's file.

tests/infra/test_compose.py reads the files; here Compose itself does. Skipped where it is missing.
"""

import json
import os
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
DEPLOY = Path("infra/deploy")
WHOLE = "docker-compose.yml"
BUBBLEWRAP = str(DEPLOY / "compose.bubblewrap.yml")
NODE = str(DEPLOY / "node.compose.yml")
PASSWORD = {"MAINSPRING_POSTGRES_PASSWORD": "secret"}
ADDRESSES = {
    "MAINSPRING_DATABASE_URL": "postgresql://u:p@db.example/m",
    "MAINSPRING_TEMPORAL_ADDRESS": "temporal.example:7233",
    "MAINSPRING_NODE_ID": "node-7",
}
HOME = "/var/lib/mainspring"


@cache
def compose() -> list[str]:
    """The command, its second version. Skips the test where there is none."""
    for command in (["docker", "compose"], ["docker-compose"]):
        if shutil.which(command[0]) is None:
            continue
        said = subprocess.run(
            [*command, "version", "--short"], capture_output=True, text=True, check=False
        )
        # The first version knows neither `name` nor `args` without values.
        if said.returncode == 0 and not said.stdout.startswith(("1.", "v1.")):
            return command
    pytest.skip("there is no `docker compose` of version 2 or newer here")


def config(
    *files: str, example: str = "env.example", **variables: str
) -> subprocess.CompletedProcess[str]:
    """With every profile and, in place of a developer's own .env, the example."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("MAINSPRING_")}
    words = [word for file in files for word in ("-f", file)]
    return subprocess.run(
        [
            *(*compose(), "--env-file", str(DEPLOY / example), *words),
            *("--profile", "*", "config", "--format", "json"),
        ],
        cwd=ROOT,
        env=own | variables,
        capture_output=True,
        text=True,
        check=False,
    )


def rendered(*files: str, **variables: str) -> dict[str, Any]:
    made = config(*files, **PASSWORD, **variables)
    assert made.returncode == 0, made.stderr
    assert "level=warning" not in made.stderr, made.stderr
    return json.loads(made.stdout)["services"]


def mounts(service: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {mount["target"]: mount for mount in service["volumes"]}


def gpus(service: dict[str, Any]) -> list[str]:
    [device] = service["deploy"]["resources"]["reservations"]["devices"]
    assert device["driver"] == "nvidia" and device["capabilities"] == ["gpu"]
    return device["device_ids"]


@pytest.mark.parametrize("password", [{}, {"MAINSPRING_POSTGRES_PASSWORD": ""}])
def test_no_password_is_refused_by_name(password: dict[str, str]) -> None:
    refused = config(WHOLE, **password)
    assert refused.returncode != 0
    assert "MAINSPRING_POSTGRES_PASSWORD" in refused.stderr and ".env" in refused.stderr


def test_ports_are_on_loopback_alone() -> None:
    ports = [port for service in rendered(WHOLE).values() for port in service.get("ports", [])]
    assert {port["host_ip"] for port in ports} == {"127.0.0.1"}
    assert {port["published"] for port in ports} == {
        *("5432", "7233", "8233", "30000", "8400", "8443"),
    }


def test_password_reaches_who_needs_it_and_keys_go_on_to_ours() -> None:
    keys = {"MAINSPRING_POLICY_API_KEY": "k", "HF_TOKEN": "t", "MAINSPRING_IMAGE_MIRRORS": "m/hub"}
    services = rendered(WHOLE, **keys)
    ours = {name for name, service in services.items() if "build" in service} - {"edge"}
    url = "postgresql://mainspring:secret@postgres:5432/mainspring"
    ours_too = {name for name in services if services[name].get("image") == "mainspring:local"}
    assert ours == ours_too - {"edge"}
    for name in ours:
        environment = services[name]["environment"]
        assert environment["MAINSPRING_DATABASE_URL"] == url, name
        assert keys.items() <= environment.items(), name
    assert services["postgres"]["environment"]["POSTGRES_PASSWORD"] == "secret"
    assert services["temporal"]["environment"]["POSTGRES_PWD"] == "secret"
    without = rendered(WHOLE)
    for name in ours:
        assert not without[name]["environment"].get("MAINSPRING_POLICY_API_KEY"), name


def test_gpus_are_reserved_apart_and_can_be_chosen() -> None:
    services = rendered(WHOLE)
    assert gpus(services["engine"]) == ["0"] and gpus(services["trainer-gpu"]) == ["1"]
    chosen = rendered(WHOLE, MAINSPRING_ENGINE_GPU="2", MAINSPRING_TRAINER_GPU="3")
    assert gpus(chosen["engine"]) == ["2"] and gpus(chosen["trainer-gpu"]) == ["3"]
    assert {name for name in services if "deploy" in services[name]} == {"engine", "trainer-gpu"}


@pytest.mark.parametrize("name", ["engine", "engine-cpu", "trainer", "trainer-gpu", "tools"])
def test_model_folder_and_state_are_where_commands_look(name: str, tmp_path: Path) -> None:
    chosen = {"MAINSPRING_MODELS": str(tmp_path), "MAINSPRING_MODEL": "/models/own"}
    service = rendered(WHOLE, **chosen)[name]
    models = mounts(service)["/models"]
    assert (models["type"], models["source"], models["read_only"]) == ("bind", str(tmp_path), True)
    state = mounts(service)[HOME]
    assert (state["type"], state["source"]) == ("volume", "state")
    # The engine reads weights where the trainer writes them.
    assert state.get("read_only", False) == (name == "engine")
    if name.startswith("engine"):
        served = [word for word in service["command"] if word.startswith("--model")]
        assert [word.partition("=")[2] for word in served] == ["/models/own"]


def test_both_engines_have_the_address_that_campaign_files_name() -> None:
    services = rendered(WHOLE)
    assert services["engine-cpu"]["networks"]["default"]["aliases"] == ["engine"]
    for name in ("engine", "engine-cpu"):
        assert "--port=30000" in services[name]["command"]
        assert services[name]["ports"][0]["target"] == 30000


def test_trainers_wait_for_the_campaign_that_is_named() -> None:
    services = rendered(WHOLE, MAINSPRING_CAMPAIGN="mine")
    for name in ("trainer", "trainer-gpu"):
        assert services[name]["command"] == ["worker", "trainer", "--campaign", "mine"]
        assert int(services[name]["shm_size"]) >= 2 << 30, "Ray's object store"


def test_image_can_be_built_from_another_base() -> None:
    arguments = rendered(WHOLE)["rollout"]["build"]["args"]
    assert arguments["BASE_IMAGE"] == "python:3.11-slim-bookworm"
    chosen = rendered(WHOLE, MAINSPRING_BASE_IMAGE="own/debian", PIP_INDEX_URL="https://i.example")
    arguments = chosen["rollout"]["build"]["args"]
    assert arguments["BASE_IMAGE"] == "own/debian"
    assert arguments["PIP_INDEX_URL"] == "https://i.example"


def test_override_adds_privileges_to_the_sandbox_node_and_changes_nothing_else() -> None:
    without, with_it = rendered(WHOLE), rendered(WHOLE, BUBBLEWRAP)
    node = with_it.pop("sandbox")
    plain = without.pop("sandbox")
    assert with_it == without
    assert (node.pop("user"), node.pop("cap_add")) == ("root", ["SYS_ADMIN", "NET_ADMIN"])
    assert "systempaths=unconfined" in node.pop("security_opt")
    state = mounts(node)[HOME]["source"], mounts(plain)[HOME]["source"]
    assert state == ("root-node", "state"), "what root made, nobody else could write to"
    for service in (node, plain):
        service["volumes"] = [each for each in service["volumes"] if each["target"] != HOME]
    assert node == plain


def test_dockers_socket_is_there_only_where_asked_for() -> None:
    assert mounts(rendered(WHOLE)["sandbox"])["/var/run/docker.sock"]["source"] == "/dev/null"
    chosen = {"MAINSPRING_DOCKER_SOCKET": "/run/docker.sock", "MAINSPRING_DOCKER_GID": "123"}
    services = rendered(WHOLE, **chosen)
    assert mounts(services["sandbox"])["/var/run/docker.sock"]["source"] == "/run/docker.sock"
    assert services["sandbox"]["group_add"] == ["123"]
    others = [name for name in services if "/run/docker.sock" in json.dumps(services[name])]
    assert others == ["sandbox"]


def test_env_example_can_choose_files_and_profiles_for_every_command() -> None:
    example = (ROOT / DEPLOY / "env.example").read_text()
    lines = [line[2:].split(maxsplit=1)[0] for line in example.splitlines() if "COMPOSE_" in line]
    chosen = dict(line.split("=") for line in lines)
    assert chosen["COMPOSE_FILE"].split(":") == [WHOLE, BUBBLEWRAP]
    variables = PASSWORD | chosen
    said = subprocess.run(
        [*compose(), "--env-file", "/dev/null", "config", "--services"],
        cwd=ROOT,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert said.returncode == 0, said.stderr
    assert {"engine", "trainer-gpu", "sandbox", "rollout"} <= set(said.stdout.split())
    assert not {"engine-cpu", "trainer", "tools"} & set(said.stdout.split())


def test_node_needs_its_addresses_and_gets_them() -> None:
    made = config(NODE, example="node.env.example", **ADDRESSES)
    assert made.returncode == 0, made.stderr
    assert (
        ADDRESSES.items() <= json.loads(made.stdout)["services"]["sandbox"]["environment"].items()
    )
    for name in ADDRESSES:
        refused = config(NODE, example="node.env.example", **(ADDRESSES | {name: ""}))
        assert refused.returncode != 0 and name in refused.stderr
