"""Bundles of a package that a test makes: made once, whole or not at all, found and removed."""

import asyncio
import json
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from infra.bundles.build import LOADERS, BundleBroken, add
from infra.bundles.store import (
    MANIFEST,
    BundleManifest,
    BundleMissing,
    BundleStore,
    digest,
    mounts_for,
)
from mainspring.config.agents.agent import AgentConfig
from mainspring.errors import ConfigError
from mainspring.programs.recipes import Recipe, recipe_of, recipes
from tests.infra.bundles.wheels import make_wheel

MODULE = "import sys\nprint('tool 1.0', *sys.argv[1:])\n"


@pytest.fixture
def store(tmp_path: Path) -> BundleStore:
    return BundleStore(tmp_path / "agents")


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    """Of a wheel, which pip installs without a network."""
    wheel = make_wheel(tmp_path, MODULE)
    return Recipe(name="tool", version="1.0", pip=(str(wheel),), programs={"tool": "python:tool"})


def test_a_bundle_is_made_once_and_runs(store: BundleStore, recipe: Recipe) -> None:
    made, is_new = add(store, recipe)
    assert (made.name, is_new) == ("tool-1.0", True)
    ran = subprocess.run([made.folder / "bin/tool", "a b"], capture_output=True, text=True)
    assert (ran.stdout, ran.returncode) == ("tool 1.0 a b\n", 0), ran
    assert add(store, recipe) == (made, False)
    assert [bundle.name for bundle in store.list()] == ["tool-1.0"]
    assert made.manifest.sha256 == digest(made.folder)
    assert made.manifest.python == f"{sys.version_info.major}.{sys.version_info.minor}"
    (made.folder / "site/tool.py").write_text("print('another')\n")
    assert made.manifest.sha256 != digest(made.folder)
    store.remove("tool-1.0")
    assert not store.list()
    with pytest.raises(BundleMissing, match="not on this machine"):
        store.find("tool-1.0")


def test_a_program_that_needs_glibc_tells_of_an_image_without_it(
    store: BundleStore, recipe: Recipe
) -> None:
    linked = recipe.model_copy(update={"programs": {"tool": "file:site/tool.py"}})
    made, _ = add(store, linked)
    program, starter = made.folder / "site/tool.py", made.folder / "bin/tool"
    program.write_text('#!/bin/sh\necho "tool $*"\n')
    program.chmod(0o755)
    ran = subprocess.run([starter, "a b"], capture_output=True, text=True)
    assert (ran.stdout, ran.returncode) == ("tool a b\n", 0), ran
    loader = LOADERS[platform.machine()]
    assert Path(loader).exists() and loader in starter.read_text()
    starter.write_text(starter.read_text().replace(loader, "/lib/ld-musl.so"))
    ran = subprocess.run([starter], capture_output=True, text=True)
    glibc = made.manifest.min_glibc
    assert (ran.returncode, ran.stderr) == (
        127,
        f"{starter} needs glibc {glibc}, and this image has none\n",
    )


async def test_of_two_at_once_one_makes_it(store: BundleStore, recipe: Recipe) -> None:
    both = await asyncio.gather(*(asyncio.to_thread(add, store, recipe) for _ in range(2)))
    assert sorted(is_new for _, is_new in both) == [False, True]
    assert both[0][0] == both[1][0]


def test_what_a_killed_process_left_is_no_bundle(store: BundleStore, recipe: Recipe) -> None:
    for left in (".tool-1.0.new", "tool-1.0"):
        (store.folder / left / "site").mkdir(parents=True)
        (store.folder / left / "site/half.py").write_text("")
    assert store.list() == []
    made, is_new = add(store, recipe)
    assert is_new and not (made.folder / "site/half.py").exists()
    assert not (store.folder / ".tool-1.0.new").exists()


def test_what_cannot_be_installed_leaves_nothing(store: BundleStore, recipe: Recipe) -> None:
    broken = recipe.model_copy(update={"pip": ("/nowhere/tool-1.0-py3-none-any.whl",)})
    with pytest.raises(BundleBroken, match=r"tool-1\.0: .* ended with 1"):
        add(store, broken)
    lacking = recipe.model_copy(update={"programs": {"tool": "file:site/no-such-*"}})
    with pytest.raises(BundleBroken, match="0 files match site/no-such-"):
        add(store, lacking)
    newer = recipe.model_copy(update={"min_python": "3.90"})
    with pytest.raises(ConfigError, match=r"needs Python 3\.90 or newer"):
        add(store, newer)
    assert store.list() == []
    assert [path.name for path in store.folder.iterdir()] == [".tool-1.0.lock"]


def test_a_bundle_of_another_machine_is_not_mounted(
    store: BundleStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a shared folder or a copy brought it here: its programs would not start."""
    monkeypatch.setenv("MAINSPRING_AGENTS_DIR", str(store.folder))
    codex = recipe_of("codex")
    folder = store.folder / codex.bundle
    folder.mkdir(parents=True)
    manifest = BundleManifest(
        name=codex.name,
        version=codex.version,
        packages=(),
        programs=("codex",),
        sha256="",
        machine="riscv64",
    )
    (folder / MANIFEST).write_text(manifest.model_dump_json())
    with pytest.raises(BundleMissing, match="is for riscv64, and this machine is") as raised:
        mounts_for(AgentConfig(kind="codex"))
    assert f"agents remove codex@{codex.version}" in raised.value.remedy
    fitting = manifest.model_copy(update={"machine": platform.machine()})
    (folder / MANIFEST).write_text(fitting.model_dump_json())
    assert list(mounts_for(AgentConfig(kind="codex")).values()) == [folder]


def test_recipes_and_their_versions() -> None:
    assert recipe_of("codex").bundle == f"codex-{recipes()['codex'].version}"
    assert recipe_of("codex", "9.9.9").bundle == "codex-9.9.9"
    assert recipe_of("codex", "9.9.9").npm == recipe_of("codex").npm
    for version in ("../x", "", "a b", "-rf"):
        with pytest.raises(ConfigError, match="is no version of codex"):
            recipe_of("codex", version)
    with pytest.raises(ConfigError, match="no client is called 'codecks'"):
        recipe_of("codecks")


def test_the_command_lists_and_refuses(tmp_path: Path) -> None:
    def ask(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "cli.main", "agents", *words],
            capture_output=True,
            text=True,
            env={"PATH": "/usr/bin:/bin", "MAINSPRING_AGENTS_DIR": str(tmp_path / "none")},
            cwd=Path(__file__).parents[3],
        )

    listed = ask("list", "--json")
    rows = json.loads(listed.stdout)
    assert {row["name"] for row in rows} == set(recipes())
    assert not any(row["is_here"] for row in rows)
    for words in (("add", "codecks"), ("check", "codex"), ("remove", "codex@1.0")):
        refused = ask(*words)
        assert refused.returncode == 2, refused
        assert "Traceback" not in refused.stderr and "\n  " in refused.stderr
