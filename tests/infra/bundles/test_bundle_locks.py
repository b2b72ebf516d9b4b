"""Lock files: of every recipe, with hashes and without addresses; nothing else is installed."""

import hashlib
import json
import zipfile
from pathlib import Path

import pytest

from infra.bundles import locks
from infra.bundles.build import BundleBroken, add
from infra.bundles.store import BundleStore
from mainspring.programs.recipes import Recipe, recipes

KNOWN = sorted(recipes())


@pytest.mark.parametrize("name", KNOWN)
def test_the_known_version_of_each_client_is_locked(name: str) -> None:
    recipe = recipes()[name]
    assert recipe.npm or recipe.pip
    if recipe.npm:
        path = locks.npm_lock(recipe)
        assert path, f"no lock file of {recipe.bundle}: run `make locks`"
        assert "://" not in path.read_text()
        lock = json.loads(path.read_text())["packages"]
        project = locks.npm_project(recipe)
        for field in ("dependencies", "optionalDependencies"):
            assert lock[""].get(field, {}) == project[field], "run `make locks`"
        others = [package for name, package in lock.items() if name]
        assert others
        assert all(package.get("integrity") or package.get("inBundle") for package in others)
    if recipe.pip:
        path = locks.pip_lock(recipe)
        assert path, f"no lock file of {recipe.bundle}: run `make locks`"
        assert "://" not in path.read_text()
        requirements = path.read_text().replace("\\\n", " ").splitlines()
        assert all("==" in each and " --hash=sha256:" in each for each in requirements)
        names = {each.split("==")[0].split("[")[0] for each in requirements}
        assert {each.split("==")[0] for each in recipe.pip} <= names
        pinned = "\n".join(requirements)
        asked = locks.packages(recipe.pip, recipe, "x86_64")
        assert all(each in pinned for each in asked if "==" in each), "run `make locks`"


def test_no_lock_file_is_of_another_version() -> None:
    folder = Path(locks.__file__).parent / "locks"
    known = {recipe.bundle for recipe in recipes().values()}
    assert {path.stem for path in folder.iterdir()} == known
    assert locks.npm_lock(recipes()["codex"].at("9.9.9")) is None


def test_what_is_not_in_the_lock_file_is_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = tmp_path / "tool-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as made:
        made.writestr("tool.py", "print('tool 1.0')\n")
        made.writestr(
            "tool-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tool\nVersion: 1.0\n"
        )
        made.writestr("tool-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        made.writestr("tool-1.0.dist-info/RECORD", "tool.py,,\n")
    recipe = Recipe(name="tool", version="1.0", pip=(str(wheel),), programs={"tool": "python:tool"})
    monkeypatch.setattr(locks, "_FOLDER", tmp_path)
    store = BundleStore(tmp_path / "agents")
    lock = tmp_path / "tool-1.0.txt"
    lock.write_text(f"tool @ file://{wheel} --hash=sha256:{'0' * 64}\n")
    with pytest.raises(BundleBroken, match=r"(?i)do not match the hashes|Expected sha256"):
        add(store, recipe)
    assert store.list() == []
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    lock.write_text(f"tool @ file://{wheel} --hash=sha256:{digest}\n")
    made, is_new = add(store, recipe)
    assert is_new and made.manifest.is_locked
    assert (made.folder / "site/tool.py").exists()
