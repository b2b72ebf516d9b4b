"""Names of images and their mirrors; what Docker says, and whose fault that is; the record."""

import time
from pathlib import Path

import pytest

from infra.sandbox.containers.image_faults import ImageFaultCause, pull_cause, start_fault
from infra.sandbox.containers.image_names import ImageName, mirrored, parse_mirrors
from infra.sandbox.containers.image_pull import Layers
from infra.sandbox.containers.image_record import ImageRecord
from infra.sandbox.protocol import (
    DiskFull,
    ImageDenied,
    ImageUnfit,
    ImageUnknown,
    ImageUnreachable,
    SandboxRefused,
)
from infra.temporal.faults import failure
from mainspring.errors import ConfigError
from mainspring.status import FaultKind

DIGEST = f"sha256:{'0' * 64}"


@pytest.mark.parametrize(
    ("image", "meant", "at_mirror"),
    [
        ("x", "docker.io/library/x:latest", "m.example/hub/library/x:latest"),
        ("docker.io/library/x:1", "docker.io/library/x:1", "m.example/hub/library/x:1"),
        ("docker.io/x:1", "docker.io/library/x:1", "m.example/hub/library/x:1"),
        ("index.docker.io/a/x", "docker.io/a/x:latest", "m.example/hub/a/x:latest"),
        ("team/x_s_1.a__b-c:V1", "docker.io/team/x_s_1.a__b-c:V1", None),
        ("ghcr.io/a/b/x:1", "ghcr.io/a/b/x:1", "m.example/hub/ghcr.io/a/b/x:1"),
        ("localhost/x", "localhost/x:latest", "m.example/hub/localhost/x:latest"),
        ("r.example:5000/x:1", "r.example:5000/x:1", "m.example/hub/r.example-5000/x:1"),
        (f"a/x@{DIGEST}", f"docker.io/a/x@{DIGEST}", f"m.example/hub/a/x@{DIGEST}"),
        (f"a/x:1@{DIGEST}", f"docker.io/a/x@{DIGEST}", f"m.example/hub/a/x@{DIGEST}"),
    ],
)
def test_names_and_where_a_mirror_keeps_them(image: str, meant: str, at_mirror: str | None) -> None:
    name = ImageName.parse(image)
    assert str(name) == meant
    assert ImageName.parse(meant) == name
    moved = mirrored(name, "m.example/hub")
    assert at_mirror in (None, str(moved))
    assert ImageName.parse(str(moved)) == moved
    assert str(mirrored(name, "m.example:443")).startswith("m.example:443/")


@pytest.mark.parametrize("image", ["", "Upper", "a b", "https://x/y", "x:", "x@sha256:12", "/x"])
def test_what_is_not_a_name_is_the_tasks_fault(image: str) -> None:
    with pytest.raises(ImageUnknown, match="not the name of an image"):
        ImageName.parse(image)


def test_mirrors_are_checked_before_anything_is_pulled() -> None:
    assert parse_mirrors("") == ()
    assert parse_mirrors(" m.example/hub/, localhost:5000,") == ("m.example/hub", "localhost:5000")
    for wrong in ("https://m.example", "m.example/Hub", "m.example:x"):
        with pytest.raises(ConfigError, match="mirror"):
            parse_mirrors([wrong])


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("received unexpected HTTP status: 503 Service Unavailable", ImageFaultCause.TRANSIENT),
        ("toomanyrequests: You have reached your pull rate limit.", ImageFaultCause.TRANSIENT),
        (
            'Get "https://denied.example/v2/": dial tcp: lookup: no such host',
            ImageFaultCause.TRANSIENT,
        ),
        ('Get "http://127.0.0.1:1/v2/": connect: connection refused', ImageFaultCause.TRANSIENT),
        ("open /var/lib/docker/tmp/x: permission denied", ImageFaultCause.TRANSIENT),
        ("filesystem layer verification failed for digest sha256:12", ImageFaultCause.TRANSIENT),
        ("failed to register layer: write /x: no space left on device", ImageFaultCause.DISK_FULL),
        ("manifest for x:1 not found: manifest unknown: manifest unknown", ImageFaultCause.UNKNOWN),
        ("name unknown", ImageFaultCause.UNKNOWN),
        (
            'failed to resolve reference "docker.io/a/b:1": docker.io/a/b:1: not found',
            ImageFaultCause.UNKNOWN,
        ),
        (
            "pull access denied for x, repository does not exist or may require 'docker login'",
            ImageFaultCause.DENIED,
        ),
        ("unauthorized: authentication required", ImageFaultCause.DENIED),
        ('Head "http://r/v2/a/manifests/1": no basic auth credentials', ImageFaultCause.DENIED),
        (
            "no matching manifest for linux/arm64/v8 in the manifest list entries",
            ImageFaultCause.UNFIT,
        ),
    ],
)
def test_what_docker_says_of_a_pull(text: str, cause: ImageFaultCause) -> None:
    assert pull_cause(text) is cause


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ('runc create failed: exec: "bash": executable file not found in $PATH', ImageUnfit),
        ("exec /bin/bash: exec format error", ImageUnfit),
        ("exec /usr/bin/bash: no such file or directory", ImageUnfit),
        ("standard_init_linux.go:228: exec user process caused: exec format error", ImageUnfit),
        ("crun: executable file `bash` not found in $PATH: No such file", ImageUnfit),
        ("Cannot mkdir: /testbed is not a directory", ImageUnfit),
        ("mkdir /var/lib/docker/overlay2/x: no space left on device", DiskFull),
        ('exec: "runc": executable file not found in $PATH', None),
        ("error mounting cgroup: no such file or directory", None),
        ("fork/exec /proc/self/exe: resource temporarily unavailable", None),
    ],
)
def test_what_docker_says_of_a_start(text: str, fault: type[Exception] | None) -> None:
    said = start_fault("x", text)
    assert isinstance(said, SandboxRefused) == (fault is ImageUnfit)
    assert fault is None or type(said) is fault


@pytest.mark.parametrize("refusal", [ImageUnknown, ImageDenied, ImageUnfit])
def test_only_what_the_image_is_to_blame_for_makes_a_task_invalid(refusal: type) -> None:
    failed = failure(refusal("x"), attempt=1, waited_s=0.0)
    assert failed.type == FaultKind.TASK_INVALID and failed.non_retryable
    for fault in (ImageUnreachable, DiskFull):
        assert not failure(fault("x"), attempt=1, waited_s=0.0).non_retryable


def test_progress_is_summed_over_layers() -> None:
    layers = Layers()
    downloading = {"status": "Downloading", "progressDetail": {"current": 10, "total": 100}}
    assert layers.saw({"id": "a", **downloading}) and layers.saw({"id": "b", **downloading})
    assert layers.saw({"id": "a", "status": "Download complete"})
    assert not layers.saw({"id": "c", "status": "Already exists"})
    assert layers.bytes == (110, 200)


def test_the_record_outlives_its_process_and_damage(tmp_path: Path) -> None:
    ImageRecord(tmp_path).note("a", pulled=True)
    other = ImageRecord(tmp_path)
    other.note("b")
    other.note("a")
    uses = ImageRecord(tmp_path).read()
    assert uses["a"].pulled and not uses["b"].pulled
    assert abs(uses["b"].used_at - time.time()) < 5
    (tmp_path / "images.json").write_text("{")
    assert other.read() == {}
    other.note("c")
    assert set(other.read()) == {"c"}
