"""The Python that a bundle brings: found by name, copied, used before the image's own, unseen."""

import subprocess
import sys
from pathlib import Path

import pytest

from infra.bundles import interpreter
from infra.bundles.build import add
from infra.bundles.store import Bundle, BundleStore
from mainspring.errors import ConfigError
from mainspring.programs.recipes import Recipe
from tests.infra.bundles.wheels import make_wheel

OWN = f"{sys.version_info.major}.{sys.version_info.minor}"
MODULE = """\
import json, os, sqlite3, ssl, subprocess, sys

import ctypes

child = subprocess.run(["env"], capture_output=True, text=True).stdout
again = subprocess.run([sys.executable, "-c", "import ssl, sys; print(sys.prefix)"], text=True,
                       stdout=subprocess.PIPE).stdout.strip()
assert again == sys.prefix, again
seen = [line for line in child.splitlines() if line.startswith(("LD_", "PYTHON"))]
print(json.dumps([sys.prefix, seen, ssl.OPENSSL_VERSION[:7]]))
"""


def recipe(tmp_path: Path, **fields: str) -> Recipe:
    """Of a wheel, which pip installs without a network."""
    wheel = make_wheel(tmp_path, MODULE)
    programs = {"tool": "python:tool"}
    return Recipe(name="tool", version="1.0", pip=(str(wheel),), programs=programs, **fields)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("bundle")
    return add(BundleStore(folder / "agents"), recipe(folder))[0]


def ran(bundle: Bundle, path: str, libraries: str = "") -> subprocess.CompletedProcess[str]:
    environment = {"PATH": path} | ({"LD_LIBRARY_PATH": libraries} if libraries else {})
    program = bundle.folder / "bin/tool"
    return subprocess.run([program], capture_output=True, text=True, env=environment)


def test_its_own_python_runs_and_its_programs_see_nothing_of_it(bundle: Bundle) -> None:
    for libraries, seen in (("", "[]"), ("/before:/x", '["LD_LIBRARY_PATH=/before:/x"]')):
        result = ran(bundle, "/usr/bin:/bin", libraries)
        assert result.returncode == 0, result
        assert result.stdout.startswith(f'["{bundle.folder}/python", {seen}, "OpenSSL'), result
    assert bundle.manifest.python == OWN
    assert bundle.manifest.min_glibc and bundle.manifest.min_glibc.startswith("2.")
    assert not any(bundle.folder.glob(f"python/lib/python{OWN}/test"))


def test_an_image_with_an_older_libc_gives_its_own_python_or_a_sentence(
    bundle: Bundle, tmp_path: Path
) -> None:
    own = bundle.folder / f"python/bin/python{OWN}"
    program = bundle.folder / "bin/tool"
    kept = own.read_bytes(), program.read_text()
    (tmp_path / f"python{OWN}").symlink_to(sys.executable)
    try:
        own.write_text("#!/bin/sh\nexit 1\n")
        result = ran(bundle, f"{tmp_path}:/usr/bin:/bin")
        assert result.returncode == 0, result
        assert f"{bundle.folder}/python" not in result.stdout
        program.write_text(kept[1].replace(OWN, "3.90"))
        refused = ran(bundle, "/usr/bin:/bin")
        assert refused.returncode == 127
        glibc = bundle.manifest.min_glibc
        assert f"needs glibc {glibc} or Python 3.90, and this image" in refused.stderr
    finally:
        own.write_bytes(kept[0])
        program.write_text(kept[1])


def test_another_python_is_found_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    newer = recipe(tmp_path, min_python="3.90")
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    monkeypatch.setenv("UV_PYTHON_INSTALL_DIR", str(tmp_path / "uv"))
    with pytest.raises(ConfigError, match=r"tool-1\.0 needs Python 3\.90 or newer, and this mach"):
        interpreter.find(newer)
    # The first is one of pyenv's shims: it is there, and it starts nothing.
    (tmp_path / "shims").mkdir()
    (tmp_path / "shims/python3.90").write_text("#!/bin/sh\nexit 127\n")
    (tmp_path / "shims/python3.90").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/shims:/usr/bin:/bin")
    there = tmp_path / "pyenv/versions/3.90.1/bin"
    there.mkdir(parents=True)
    (there / "python3.90").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (there / "python3.90").chmod(0o755)
    found = interpreter.find(newer)
    assert (found.path, found.version) == (str(there / "python3.90"), "3.90")
