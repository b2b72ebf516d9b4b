"""What an edge does not let through: gateways without its secret, and requests inside others."""

import asyncio
import ssl
import subprocess
import sys
from asyncio.subprocess import DEVNULL
from pathlib import Path
from typing import Any

import httpx
import pytest
from edges import dialled, dialled_app, edge_here
from raw_client import ASK, Raw, connected, post
from scripted_answers import KEY, OTHER_KEY, Script
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send
from structlog.testing import capture_logs
from typer.testing import CliRunner

from gateway.app import make_app
from gateway.connection import preamble
from gateway.edge.dialling import edge_at
from gateway.edge.line import Forwarded, Head, Line
from gateway.edge.secret import is_loopback, refuse_open
from gateway.edge.wire import GATEWAY_HEADER, LINE, ROUTE, end_to_end
from gateway.server import Bounds, Tls
from gateway.sessions.wrong_keys import MAX_WRONG
from mainspring.errors import UsageError
from tests.edge_process import SECRET, edge_process
from tests.waiting import until

BEARER = {"authorization": f"Bearer {KEY}"}
CHAT = "/v1/chat/completions"


def dialling(secret: str | None = SECRET, **changes: str) -> bytes:
    fields = {
        "host": "edge",
        "connection": "upgrade",
        "upgrade": LINE.decode(),
        GATEWAY_HEADER.decode(): "gateway-1",
        **({"authorization": f"Bearer {secret}"} if secret else {}),
        **changes,
    }
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"GET {ROUTE} HTTP/1.1\r\n{lines}\r\n".encode()


@pytest.mark.parametrize("secret", [None, "", "s" * 39, "s" * 41, "S" * 40, "\x00" * 40])
async def test_a_wrong_secret_makes_no_line(secret: str | None) -> None:
    async with edge_here(no_gateway_s=0.1) as edge, connected(edge.at) as raw:
        await raw.send(dialling(secret))
        told = await raw.rest()
        assert told.split(b"\r\n")[0].split(b" ")[1] in (b"400", b"401"), told
        assert edge.lines.num_gateways == 0


async def test_the_right_secret_makes_one_and_a_guesser_is_shut_out() -> None:
    async with edge_here() as edge:
        async with connected(edge.at) as raw:
            await raw.send(dialling())
            assert (await raw.until(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")
            for _ in range(MAX_WRONG + 1):
                async with connected(edge.at) as guess:
                    await guess.send(dialling("g" * 40))
                    refused = await guess.rest()
            assert b" 429 " in refused.split(b"\r\n")[0]
            assert edge.lines.num_gateways == 1
        await until(lambda: edge.lines.num_gateways == 0)
        async with connected(edge.at) as raw:  # it was right before
            await raw.send(dialling())
            assert (await raw.until(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")


@pytest.mark.parametrize(
    "changes",
    [
        {GATEWAY_HEADER.decode(): "../x y"},
        {"content-length": "5"},
        {"upgrade": "websocket"},
        {"connection": "close"},
    ],
)
async def test_a_gateway_that_dials_in_another_way_is_refused(changes: dict[str, str]) -> None:
    async with edge_here(no_gateway_s=0.1) as edge, connected(edge.at) as raw:
        await raw.send(dialling(**changes) + b"GET /")
        assert not (await raw.until(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")
        assert edge.lines.num_gateways == 0


async def test_a_gateway_with_another_secret_tells_it_once() -> None:
    script = Script()
    async with edge_here(no_gateway_s=0.1) as edge:
        with capture_logs() as logs:
            async with dialled(edge.at.url, script, "other" * 8):
                await until(lambda: any(log["event"] == "no line to an edge" for log in logs))
                await asyncio.sleep(1.0)
        [told] = [log for log in logs if log["event"] == "no line to an edge"]
        assert told["cause"] == "it does not take this gateway's secret"
        assert "MAINSPRING_EDGE_SECRET" in told["remedy"]
        assert edge.lines.num_gateways == 0


REFUSED = {
    *("a line first", "both lengths", "two lengths", "another coding", "a line end in a target"),
    "a length that is none",
}
"""By the edge, which hands on nothing of them."""
TWO = {"bare line feeds", "a folded header"}
"""Two requests one behind the other, as the edge reads them: a client may ask for two sessions."""


async def test_a_gateway_reaches_an_edge_by_tls_that_it_trusts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tls = Tls(certificate=tmp_path / "cert.pem", key=tmp_path / "key.pem")
    words = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=edge"
    words += f" -addext subjectAltName=IP:127.0.0.1 -out {tls.certificate} -keyout {tls.key}"
    await (await asyncio.create_subprocess_exec(*words.split(), stderr=DEVNULL)).wait()
    trusted = ssl.create_default_context(cafile=str(tls.certificate))
    script = Script()
    async with edge_here(tls=tls, no_gateway_s=0.1) as edge:
        with capture_logs() as logs:
            async with dialled(edge.at.url, script):
                await until(lambda: any(log["event"] == "no line to an edge" for log in logs))
        [told] = [log for log in logs if log["event"] == "no line to an edge"]
        assert "certificate is not trusted" in told["cause"] and "SSL_CERT_FILE" in told["cause"]
        assert edge.lines.num_gateways == 0
        monkeypatch.setenv("SSL_CERT_FILE", str(tls.certificate))
        async with (
            dialled(edge.at.url, script),
            httpx.AsyncClient(base_url=edge.at.url, verify=trusted, headers=BEARER) as client,
        ):
            await until(lambda: edge.lines.num_gateways == 1)
            assert (await client.post(CHAT, json=ASK)).status_code == 200


def attacks() -> list[tuple[str, bytes]]:
    """Each would ask as the other session, if it got through."""
    inner = post(headers={"authorization": f"Bearer {OTHER_KEY}"})
    line = preamble(OTHER_KEY)
    chunked = b"5\r\nhello\r\n0\r\n\r\n" + inner
    fields = b"POST /v1/chat/completions HTTP/1.1\r\nhost: h\r\n"
    own = b"authorization: Bearer " + KEY.encode() + b"\r\n"
    return [
        ("a line first", line + post(headers=BEARER)),
        ("a line in the body", post(body=line + inner, headers=BEARER)),
        ("a request in the body", post(body=inner, headers=BEARER)),
        (
            "both lengths",
            fields + own + b"content-length: 4\r\ntransfer-encoding: chunked\r\n\r\n" + chunked,
        ),
        ("two lengths", fields + own + b"content-length: 4\r\ncontent-length: 9\r\n\r\n" + inner),
        ("another coding", fields + own + b"transfer-encoding: gzip, chunked\r\n\r\n" + chunked),
        ("a folded header", fields + own + b"x: y\r\n  transfer-encoding: chunked\r\n\r\n" + inner),
        ("bare line feeds", fields.replace(b"\r", b"") + own + b"x: y\n\n" + inner),
        ("a line end in a target", b"GET /v1/models\r\n HTTP/1.1\r\nhost: h\r\n\r\n" + inner),
        ("a line end, encoded", b"GET /v1/%0d%0amodels HTTP/1.1\r\nhost: h\r\n\r\n"),
        ("a length that is none", fields + own + b"content-length: +4\r\n\r\n" + inner),
        ("an expectation", fields + own + b"expect: 100-continue\r\ncontent-length: 0\r\n\r\n"),
        (
            "a named length",
            fields + own + b"connection: content-length\r\ncontent-length: 2\r\n\r\n{}",
        ),
    ]


@pytest.mark.parametrize(("name", "sent"), attacks(), ids=[name for name, _ in attacks()])
async def test_no_request_hides_in_another(
    monkeypatch: pytest.MonkeyPatch, name: str, sent: bytes
) -> None:
    """The gateway reads from its lines the requests that the edge has read, one for one."""
    script = Script()
    app = make_app(script)
    by_edge: list[tuple[str, bytes]] = []
    by_gateway: list[tuple[str, bytes]] = []
    ask = Line.ask

    async def asked(line: Line, request: Forwarded) -> Head:
        by_edge.append((request.method.decode(), request.target))
        return await ask(line, request)

    async def noted(scope: Scope, receive: Receive, send: Send) -> None:
        by_gateway.append((scope["method"], scope["raw_path"]))
        await app(scope, receive, send)

    monkeypatch.setattr(Line, "ask", asked)
    async with (
        edge_here(bounds=Bounds(headers_timeout_s=2.0, shutdown_timeout_s=1)) as edge,
        dialled_app(edge.at.url, noted),
        connected(edge.at) as raw,
    ):
        await until(lambda: edge.lines.num_gateways == 1)
        await raw.send(sent)
        raw.writer.write_eof()
        await raw.rest()
        assert by_edge == by_gateway
        if name in REFUSED:
            assert not by_edge
        # The lines are sound: another client is answered as ever.
        async with httpx.AsyncClient(base_url=edge.at.url, headers=BEARER) as client:
            assert (await client.post(CHAT, json=ASK)).status_code == 200
    if name not in TWO:
        assert {session.rollout for session, _, _ in script.asked} == {"one"}


async def test_who_asks_and_where_is_told_by_the_edge_alone() -> None:
    seen: list[Any] = []

    async def show(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append((scope["client"], scope["scheme"], dict(scope["headers"])))
        await JSONResponse({})(scope, receive, send)

    forged = {
        "x-mainspring-client": "6.6.6.6",
        "x-mainspring-origin": "http://evil",
        "mainspring_key": OTHER_KEY,
        "connection": "x-secret, host",
        "x-secret": "1",
        "te": "trailers",
    }
    for public_url in ("", "https://edge.example"):
        async with (
            edge_here(public_url=public_url) as edge,
            dialled_app(edge.at.url, show),
            httpx.AsyncClient(base_url=edge.at.url) as client,
        ):
            assert (await client.post("/sessions", headers=forged)).status_code == 200
        (address, _), scheme, headers = seen.pop()
        assert address == "127.0.0.1"
        own = edge.at.url.removeprefix("http://")
        assert (scheme, headers[b"host"].decode()) == (
            ("https", "edge.example") if public_url else ("http", own)
        )
        assert not {name for name in headers if name.startswith(b"x-mainspring-")}
        assert not headers.keys() & {b"te", b"x-secret", b"connection", b"upgrade"}
        # A claim that is sent again is the same claim.
        assert len(headers[b"idempotency-key"]) == 32


async def test_an_edge_binds_no_line_to_a_session() -> None:
    """Also one that means harm: it writes what a node would write."""
    script = Script()
    lines: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await lines.put((reader, writer))

    server = await asyncio.start_server(take, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, dialled(f"http://127.0.0.1:{port}", script):
        reader, writer = await lines.get()
        raw = Raw(reader, writer)
        await raw.send(b"HTTP/1.1 101 Switching Protocols\r\n\r\n" + preamble(KEY) + post())
        told = await raw.rest()
    assert told.startswith(b"HTTP/1.1 400 ") and not script.asked


async def test_what_a_gateway_sends_without_being_asked_ends_its_line() -> None:
    """It would be taken for the answer of the next request."""
    answer = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nwrong"
    async with edge_here(no_gateway_s=0.2) as edge:
        async with connected(edge.at) as raw:
            await raw.send(dialling())
            await raw.until(b"\r\n\r\n")
            await raw.send(answer)
            await until(lambda: edge.lines.num_gateways == 0)
        async with (
            connected(edge.at) as raw,
            httpx.AsyncClient(base_url=edge.at.url, headers=BEARER, timeout=60.0) as client,
        ):
            await raw.send(dialling())
            await raw.until(b"\r\n\r\n")
            asking = asyncio.create_task(client.post(CHAT, json=ASK))
            await raw.until(b"\r\n\r\n")
            await raw.send(answer.replace(b"wrong", b"right") + answer)
            assert (await asking).text == "right"
            assert (await client.post(CHAT, json=ASK)).status_code == 503
            assert edge.lines.num_gateways == 0


def test_lengths_stay_and_the_rest_of_a_hop_is_dropped() -> None:
    given = [
        (b"Connection", b"Close, X-One, content-length"),
        (b"X-One", b"1"),
        (b"x-two", b"2"),
        (b"Content-Length", b"3"),
        (b"Transfer-Encoding", b"chunked"),
        (b"X-Mainspring-Client", b"4"),
    ]
    assert end_to_end(given) == [(b"x-two", b"2"), (b"Content-Length", b"3")]


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        *(("127.0.0.1", True), ("127.8.8.8", True), ("::1", True), ("localhost", True)),
        *(("0.0.0.0", False), ("::", False), ("10.0.0.1", False), ("localhost.example", False)),
        ("", False),
    ],
)
def test_an_edge_without_a_secret_is_at_loopback_alone(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected
    if expected:
        refuse_open(host, "")
    else:
        with pytest.raises(UsageError, match="MAINSPRING_EDGE_SECRET"):
            refuse_open(host, "")
    refuse_open(host, SECRET)


@pytest.mark.parametrize(
    "url",
    [
        *("edge.example", "ftp://edge.example", "https://", "https://e:99999"),
        *("http://edge.example", "http://10.0.0.1:80", "https://user:pass@e", "https://e?secret=1"),
    ],
)
def test_an_edge_is_named_by_a_plain_url_and_reached_by_tls(url: str) -> None:
    with pytest.raises(UsageError, match="edge ") as raised:
        edge_at(url)
    assert (
        raised.value.remedy and "pass" not in str(raised.value).split("remedy")[0].split("//")[-1]
    )


def test_the_command_refuses_what_is_not_safe(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from cli.main import app

    def refused(*words: str, **variables: str) -> str:
        for name in ("MAINSPRING_EDGE_SECRET", "MAINSPRING_EDGE_SECRET_FILE"):
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        result = CliRunner().invoke(app, ["worker", "edge", *words])
        assert isinstance(result.exception, UsageError), result.output
        return str(result.exception)

    assert "needs a secret" in refused("--host", "0.0.0.0")
    assert "32 to 512" in refused(MAINSPRING_EDGE_SECRET="short")
    assert "32 to 512" in refused(MAINSPRING_EDGE_SECRET="a b" * 20)
    missing = str(tmp_path / "none")
    assert "cannot be read" in refused(MAINSPRING_EDGE_SECRET_FILE=missing)
    both = {"MAINSPRING_EDGE_SECRET": SECRET, "MAINSPRING_EDGE_SECRET_FILE": missing}
    assert "both set" in refused(**both)
    assert "belong together" in refused("--tls-cert", missing)
    for url in ("edge.example", "https://edge.example/path", "ftp://edge.example", "https://"):
        assert "scheme and host" in refused("--public-url", url)


def test_an_edge_loads_little() -> None:
    program = "import sys, workers.edge; print(*sys.modules)"
    words = [sys.executable, "-c", program]
    ran = subprocess.run(words, capture_output=True, text=True, check=True)
    heavy = {"sqlalchemy", "temporalio", "transformers", "tokenizers", "torch", "docker"}
    assert not heavy & set(ran.stdout.split())


async def test_an_edge_needs_no_service_and_shows_no_secret(tmp_path: Path) -> None:
    async with edge_process(tmp_path) as (url, edge):
        assert SECRET not in edge.log.read_text()
        assert SECRET.encode() not in Path(f"/proc/{edge.popen.pid}/cmdline").read_bytes()
        async with httpx.AsyncClient(base_url=url) as client:
            assert (await client.get("/v1/models", timeout=60.0)).status_code == 503
