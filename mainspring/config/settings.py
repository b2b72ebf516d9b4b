"""Where the services are: environment variables `MAINSPRING_*`, or what the embedded stack wrote.

Order: environment, then `<home>/stack.json` (written by `mainspring up`), then defaults.
"""

import json
import os
import socket
from enum import StrEnum
from pathlib import Path
from urllib.parse import quote

from pydantic import Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from mainspring.errors import ConfigError

STACK_FILE = "stack.json"
USUAL_NAMESPACE = "default"
"""Temporal's own name for the first one."""


class LogFormat(StrEnum):
    """How processes write their log to standard error."""

    AUTO = "auto"
    """Text on a terminal, JSON lines elsewhere."""
    TEXT = "text"
    """For people: time, level, event, fields."""
    JSON = "json"
    """One JSON object a line."""


class Settings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="MAINSPRING_", extra="ignore", frozen=True)

    home: Path = Path(".mainspring")
    """State of the embedded stack, checkpoints, reports and logs."""
    database_url: str = ""
    """postgresql://user:password@host:port/name; empty: the embedded Postgres."""
    database_direct_url: str = ""
    """The server's own, where `database_url` is a pooler's: for what needs a session, as LISTEN and
    migrations. Empty: `database_url`."""
    database_pool: int | None = Field(default=None, ge=2)
    """Connections of a process to Postgres at most; unset: as many as its role needs."""
    temporal_address: str = ""
    """host:port; empty: the embedded Temporal."""
    temporal_namespace: str = ""
    """Empty: the one that the store records; before it records one, the embedded Temporal's own,
    named after the store, and elsewhere `default`."""
    temporal_ui: str = ""
    """Base URL of Temporal's web UI, for links."""
    log_format: LogFormat = LogFormat.AUTO
    policy_api_key: SecretStr = SecretStr("")
    """Key of the policy engines and endpoints; `mainspring serve` requires the same one."""
    sglang_env: str = ""
    """Folder of the Python environment that has SGLang, which `mainspring train` starts it from;
    empty: this one."""
    node_id: str = Field(default_factory=socket.gethostname)
    """Stable name of this container host: a restarted node worker finds its sandboxes by it."""
    node_min_free_memory_mb: int = Field(default=512, ge=0)
    """A node with less free memory takes no new sandbox; 0 switches the check off."""
    node_min_free_disk_mb: int = Field(default=2048, ge=0)
    """The same for the disk that holds the node's state folder."""
    ray_address: str = ""
    """host:port of the Ray cluster that trainers use; empty: one of their own on their machine."""
    view: bool = True
    """Whether commands that keep a run's processes start the viewer beside them."""
    view_actions: bool = False
    """Whether the viewer's pages offer actions."""
    metrics_address: str = ""
    """ip:port at which a worker process answers Prometheus; empty: nowhere."""
    gateway_addresses: str = ""
    """host:port of the gateways that nodes connect programs to, separated by commas; tls:// before
    one that has a certificate. Empty: the gateways of this home folder."""
    edges: str = ""
    """URLs of edges that gateways dial out to, separated by commas."""
    edge_secret: SecretStr = SecretStr("")
    """Shared by an edge and the gateways that dial out to it."""
    edge_secret_file: str = ""
    """File that holds it, in its place."""
    agents_dir: Path = Path("~/.cache/mainspring/agents")
    """Folder of the bundles that `mainspring agents add` makes and nodes mount."""
    image_mirrors: str = ""
    """Where task images are pulled from before their own registry: "mirror.example/hub", several
    separated by commas, asked in this order."""

    @property
    def stack_file(self) -> Path:
        return self.home / STACK_FILE

    @property
    def session_url(self) -> str:
        """The database's URL for what needs a session of its own."""
        return self.database_direct_url or self.database_url

    @property
    def temporal_is_embedded(self) -> bool:
        """Whether the address is the one that the embedded stack of this home recorded."""
        return not os.environ.get(
            "MAINSPRING_TEMPORAL_ADDRESS"
        ) and self.temporal_address == _recorded(self.stack_file).get("temporal_address")

    @property
    def temporal_link(self) -> str:
        """The list of workflows in Temporal's web UI; empty where no UI is known."""
        if not self.temporal_ui:
            return ""
        namespace = quote(self.temporal_namespace or USUAL_NAMESPACE, safe="")
        return f"{self.temporal_ui.rstrip('/')}/namespaces/{namespace}/workflows"

    def in_namespace(self, name: str) -> "Settings":
        """Temporal's, when it is known where the store's work is."""
        return self.model_copy(update={"temporal_namespace": name})


def configured_settings(home: Path | None = None) -> Settings:
    """Settings from the environment and the defaults alone. Raises ConfigError."""
    try:
        settings = Settings() if home is None else Settings(home=home)
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigError(f"MAINSPRING_{str(first['loc'][0]).upper()}: {first['msg']}") from None
    paths = {"home": settings.home.absolute(), "agents_dir": settings.agents_dir.expanduser()}
    return settings.model_copy(update=paths)


def load_settings(home: Path | None = None) -> Settings:
    """Settings for this process. Raises ConfigError when the stack file cannot be read."""
    settings = configured_settings(home)
    stack = _recorded(settings.stack_file)
    filled = {
        key: stack[key]
        for key in ("database_url", "temporal_address", "temporal_ui")
        if stack.get(key) and not getattr(settings, key)
    }
    if not settings.temporal_namespace and "temporal_address" in filled:
        # What is recorded belongs to the embedded server, not to one that is configured.
        filled["temporal_namespace"] = stack.get("temporal_namespace", "")
    return settings.model_copy(update=filled)


def _recorded(stack_file: Path) -> dict[str, str]:
    """Settings that the embedded stack wrote; empty when it never ran. Raises ConfigError."""
    try:
        return json.loads(stack_file.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{stack_file}: cannot be read: {error}", remedy="run `mainspring up`"
        ) from None
