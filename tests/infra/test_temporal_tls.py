"""A Temporal server with TLS, client certificates and keys: reached by the SDK's own variables, and
told in one sentence when something does not fit."""

from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from cli.operations.machine.embedded_stack import StackInfo, status
from infra.stack.temporal_server import SEARCH_ATTRIBUTES, register_search_attributes
from infra.temporal.connection import check_owner, connect
from infra.temporal.transport import transport, unanswered
from mainspring.config.settings import Settings
from mainspring.errors import ConfigError, TemporalError
from tests.certificates import Authority
from tests.tls_front import speaking_grpc_over_tls

SECRET = "hunter2"
NAMES = ("TLS", "TLS_SERVER_CA_CERT_PATH", "TLS_CLIENT_CERT_PATH", "TLS_CLIENT_KEY_PATH", "API_KEY")


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in (*NAMES, "PROFILE", "CONFIG_FILE", "ADDRESS", "NAMESPACE", "TLS_SERVER_NAME"):
        monkeypatch.delenv(f"TEMPORAL_{name}", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("temporal-tls")


@pytest.fixture(scope="module")
def authority(folder: Path) -> Authority:
    return Authority(folder)


@pytest.fixture
async def mutual(stack: StackInfo, authority: Authority) -> AsyncIterator[str]:
    """Address of a server that asks for a client's certificate."""
    own = authority.certificate("server", "127.0.0.1")
    async with speaking_grpc_over_tls(stack.temporal_address, own, authority.file) as address:
        yield address


def given(monkeypatch: pytest.MonkeyPatch, **variables: object) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(f"TEMPORAL_{name}", str(value))


async def refusal(address: str) -> TemporalError:
    settings = Settings(temporal_address=address, temporal_namespace="default")
    with pytest.raises(TemporalError) as refused:
        await connect(settings)
    assert address in refused.value.message and "\n" not in refused.value.message
    assert refused.value.remedy
    assert SECRET not in str(refused.value)
    return refused.value


async def test_client_certificates_by_the_sdk_s_variables(
    stack: StackInfo,
    authority: Authority,
    folder: Path,
    mutual: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = authority.certificate("client")
    given(monkeypatch, TLS_SERVER_CA_CERT_PATH=authority.file)
    given(monkeypatch, TLS_CLIENT_CERT_PATH=own.cert, TLS_CLIENT_KEY_PATH=own.key, API_KEY=SECRET)
    settings = Settings(temporal_address=mutual, temporal_namespace=stack.temporal_namespace)
    client = await connect(settings)
    assert (await client.count_workflows()).count >= 0
    assert await register_search_attributes(client) == []
    for wrong in (Authority(folder, "other").certificate("stranger"),
                  authority.certificate("old", expired=True)):  # fmt: skip
        given(monkeypatch, TLS_CLIENT_CERT_PATH=wrong.cert, TLS_CLIENT_KEY_PATH=wrong.key)
        assert "client certificate" in (await refusal(mutual)).message


def test_a_connection_that_ends_before_the_call_was_sent_is_told_as_one_that_ends_at_it(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It depends on the moment at which a server's refusal of a certificate arrives."""
    ended = RuntimeError('status: Cancelled, message: "operation was canceled"')
    settings = Settings(temporal_address="there:7233")
    assert "as one does that speaks TLS" in unanswered(settings, ended).message
    given(monkeypatch, TLS_SERVER_CA_CERT_PATH=authority.file)
    assert "another client certificate" in unanswered(settings, ended).message


async def test_a_profile_of_the_configuration_file(
    stack: StackInfo,
    authority: Authority,
    mutual: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = authority.certificate("client")
    file = folder / "temporal.toml"
    file.write_text(
        f'[profile.cloud]\naddress = "{mutual}"\n[profile.cloud.tls]\n'
        f'server_ca_cert_path = "{authority.file}"\nclient_cert_path = "{own.cert}"\n'
        f'client_key_path = "{own.key}"\n'
    )
    given(monkeypatch, CONFIG_FILE=file, PROFILE="cloud")
    settings = Settings(temporal_address=mutual, temporal_namespace=stack.temporal_namespace)
    assert (await connect(settings)).namespace == stack.temporal_namespace
    with pytest.raises(ConfigError, match="its key is for another server"):
        await connect(Settings(temporal_address="elsewhere:7233"))
    given(monkeypatch, PROFILE="none")
    with pytest.raises(ConfigError, match="Profile 'none' not found"):
        await connect(settings)


async def test_the_embedded_server_is_spoken_to_in_plain(
    stack: StackInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    given(monkeypatch, TLS="true", API_KEY=SECRET)
    states = {state.service: state for state in await status(stack.home)}
    assert states["temporal"].healthy
    own = Settings(home=stack.home, temporal_address=stack.temporal_address)
    assert transport(own) == {"tls": False}
    assert transport(Settings(temporal_address="a:1"))["tls"] is not False


async def test_what_is_wrong_with_a_certificate(
    stack: StackInfo, authority: Authority, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = authority.certificate("server", "127.0.0.1")
    async with speaking_grpc_over_tls(stack.temporal_address, good) as address:
        assert "TEMPORAL_TLS=true" in (await refusal(address)).remedy
        given(monkeypatch, TLS="true", API_KEY=SECRET)
        assert "authority that is not known" in (await refusal(address)).message
        given(monkeypatch, TLS_SERVER_CA_CERT_PATH=Authority(folder, "other").file)
        assert "authority that is not known" in (await refusal(address)).message
    given(monkeypatch, TLS_SERVER_CA_CERT_PATH=authority.file)
    assert "speaks no TLS" in (await refusal(stack.temporal_address)).message
    old = authority.certificate("expired", "127.0.0.1", expired=True)
    async with speaking_grpc_over_tls(stack.temporal_address, old) as address:
        assert "has expired" in (await refusal(address)).message
    other = authority.certificate("elsewhere", "temporal.example")
    async with speaking_grpc_over_tls(stack.temporal_address, other) as address:
        assert "names another host" in (await refusal(address)).message
        given(monkeypatch, TLS_SERVER_NAME="temporal.example")
        named = Settings(temporal_address=address, temporal_namespace=stack.temporal_namespace)
        assert await connect(named)


def test_what_the_sdk_would_pass_over_is_refused(
    authority: Authority, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(temporal_address="temporal.example:7233")
    noise = folder / "noise.pem"
    noise.write_text("noise")
    for name, value, told in (
        ("TLS", "maybe", "TEMPORAL_TLS=maybe"),
        ("TLS_DISABLE_HOST_VERIFICATION", "true", "always verifies"),
        ("CONFIG_FILE", "/none.toml", "/none.toml, which is not there"),
        ("TLS_SERVER_CA_CERT_PATH", "/none.pem", "/none.pem"),
        ("TLS_SERVER_CA_CERT_PATH", noise, "cannot be read as PEM"),
        ("TLS_CLIENT_CERT_PATH", authority.file, "one is missing"),
    ):
        with monkeypatch.context() as patched:
            patched.setenv(f"TEMPORAL_{name}", str(value))
            with pytest.raises(ConfigError) as refused:
                transport(settings)
        assert told in str(refused.value)
    given(monkeypatch, TLS="false", API_KEY=SECRET)
    with pytest.raises(ConfigError, match="unencrypted") as refused:
        transport(settings)
    assert SECRET not in str(refused.value)


class _NoOperator:
    """Answers as Temporal Cloud does where a client may not."""

    def __init__(self, known: list[str]) -> None:
        self.namespace = "mine.acct"
        self.operator_service = self.workflow_service = self
        self._known = known

    async def get_search_attributes(self, _: object) -> object:
        return SimpleNamespace(keys=dict.fromkeys(self._known))

    async def list_search_attributes(self, _: object, **__: object) -> object:
        raise RPCError("Request unauthorized.", RPCStatusCode.PERMISSION_DENIED, b"")

    describe_namespace = list_search_attributes


async def test_without_an_operator_service_what_is_missing_is_named() -> None:
    client: Any = _NoOperator(list(SEARCH_ATTRIBUTES))
    assert await register_search_attributes(client) == []
    client = _NoOperator(sorted(SEARCH_ATTRIBUTES)[1:])
    with pytest.raises(TemporalError, match="lacks the search attributes CampaignId") as refused:
        await register_search_attributes(client)
    assert "--namespace mine.acct --sa CampaignId=Keyword" in refused.value.remedy
    assert await check_owner(cast(Client, client), "a:1", cast(Any, "store")) == ""
