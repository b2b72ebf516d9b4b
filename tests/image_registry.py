"""A real registry on loopback, small images in it, and a server before it that can go wrong.

Docker takes registries on loopback without TLS. Imported by tests that pull images.
"""

import contextlib
import http.client
import io
import json
import os
import shutil
import socket
import subprocess
import tarfile
import threading
import time
import urllib.request
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import docker
import pytest
from docker.errors import DockerException, ImageNotFound

PROGRAM = "docker-registry"
START_TIMEOUT_S = 90.0
NAMED = "mainspring-pulled-"
LAYER_BYTES = 200_000
_LIST_TYPE = "application/vnd.docker.distribution.manifest.list.v2+json"
_NOT_FOR_US = {
    "schemaVersion": 2,
    "mediaType": _LIST_TYPE,
    "manifests": [
        {
            "mediaType": "application/vnd.docker.distribution.manifest.v2+json",
            "size": 100,
            "digest": f"sha256:{'a' * 64}",
            "platform": {"architecture": "none-such", "os": "linux"},
        }
    ],
}


def docker_client() -> docker.DockerClient:
    """Skips the test where no daemon answers."""
    try:
        return docker.from_env(timeout=60)
    except DockerException as error:
        pytest.skip(f"no Docker daemon answers: {error}")


def make_image(client: docker.DockerClient, name: str) -> str:
    """A new one that cannot run, with one file; its id."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for path, content in (("name", name.encode()), ("noise", os.urandom(LAYER_BYTES))):
            entry = tarfile.TarInfo(path)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    repository, _, tag = name.rpartition(":")
    client.api.import_image_from_data(archive.getvalue(), repository=repository, tag=tag)
    return client.images.get(name).id or ""


def push(client: docker.DockerClient, address: str, path: str) -> str:
    """Put a new image into the registry under `path`, and not on this machine; its digest."""
    name = f"{address}/{path}"
    make_image(client, name)
    for event in client.api.push(name, stream=True, decode=True):
        assert "error" not in event, event
    digest = client.images.get(name).attrs["RepoDigests"][0].partition("@")[2]
    client.images.remove(name)
    return digest


@contextlib.contextmanager
def running_registry(folder: Path) -> Iterator[str]:
    """Its address. Skips the test where the program is missing."""
    if shutil.which(PROGRAM) is None:
        pytest.skip(f"{PROGRAM} is not installed")
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
    config = folder / "registry.json"  # JSON is YAML
    storage = {"filesystem": {"rootdirectory": str(folder / "registry")}}
    config.write_text(json.dumps({"version": 0.1, "storage": storage, "http": {"addr": address}}))
    with (folder / "registry.log").open("w") as log:
        process = subprocess.Popen([PROGRAM, "serve", config], stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            with contextlib.suppress(OSError), urllib.request.urlopen(f"http://{address}/v2/"):
                break
            assert process.poll() is None and time.monotonic() < deadline, config.parent
            time.sleep(0.05)
        yield address
    finally:
        process.terminate()
        process.wait()


@dataclass
class Front:
    """Stands before a registry, and answers in its place where a test says so."""

    registry: str
    address: str = ""
    num_unavailable: int = 0
    """As many requests for manifests get a 503."""
    open: threading.Event = field(default_factory=threading.Event)
    """Manifests are waited for while it is not set."""
    asked: list[str] = field(default_factory=list)
    """Paths of the manifests that were fetched."""
    num_waiting: int = 0
    max_waiting: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def reset(self) -> None:
        self.num_unavailable = self.max_waiting = 0
        self.asked.clear()
        self.open.set()

    def answer(self, path: str) -> tuple[int, bytes, str] | None:
        """None: the registry's own answer."""
        if "/manifests/" not in path:
            return None
        with self._lock:
            if self.num_unavailable:
                self.num_unavailable -= 1
                return 503, b"", "text/plain"
            self.num_waiting += 1
            self.max_waiting = max(self.max_waiting, self.num_waiting)
        self.open.wait(START_TIMEOUT_S)
        with self._lock:
            self.num_waiting -= 1
        if "/denied/" in path:
            errors = [{"code": "DENIED", "message": "requested access to the resource is denied"}]
            return 401, json.dumps({"errors": errors}).encode(), "application/json"
        if "/alien/" in path:
            return 200, json.dumps(_NOT_FOR_US).encode(), _LIST_TYPE
        return None


@contextlib.contextmanager
def running_front(registry: str) -> Iterator[Front]:
    front = Front(registry)
    front.open.set()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            if self.command == "GET" and "/manifests/" in self.path:
                front.asked.append(self.path)
            said = front.answer(self.path)
            if said is None:
                connection = http.client.HTTPConnection(front.registry)
                headers = {name: value for name, value in self.headers.items() if name != "Host"}
                connection.request(self.command, self.path, headers=headers)
                response = connection.getresponse()
                status, body = response.status, response.read()
                kept = dict(response.getheaders())
                connection.close()
            else:
                status, body, content_type = said
                kept = {"Content-Type": content_type, "Content-Length": str(len(body))}
            with contextlib.suppress(ConnectionError):  # who asked may have given up
                self.send_response(status)
                for name, value in kept.items():
                    self.send_header(name, value)
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

        do_HEAD = do_GET

        def log_message(self, format: str, *args: object) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    front.address = f"127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield front
    finally:
        front.open.set()
        server.shutdown()
        server.server_close()
        thread.join()


def new_name() -> str:
    return f"{NAMED}{uuid.uuid4().hex[:12]}"


def remove_images(client: docker.DockerClient) -> None:
    """Whatever carries a `new_name` on this machine."""
    for image in client.api.images():
        for name in (*(image["RepoTags"] or ()), *(image["RepoDigests"] or ())):
            if NAMED in name:
                with contextlib.suppress(ImageNotFound):  # a digest may go with its tag
                    client.images.remove(name, force=True)
