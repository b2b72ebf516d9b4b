"""Bundles of this machine, made, listed, tried and removed for `mainspring agents`."""

import asyncio
import re
import tempfile
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from infra.bundles.build import add
from infra.bundles.store import Bundle, BundleStore, digest
from infra.sandbox.bubblewrap.backend import BwrapBackend
from infra.sandbox.protocol import Limits, SandboxSpec
from mainspring.config.settings import load_settings
from mainspring.errors import UsageError, WorkFailed
from mainspring.ids import SandboxId
from mainspring.programs.profile import BUNDLES
from mainspring.programs.recipes import Recipe, recipe_of, recipes

CHECK_TIMEOUT_S = 300.0
LIMITS = Limits(memory_mb=8192, max_pids=512)
TAIL_CHARS = 300


@dataclass(frozen=True, slots=True)
class Listed:
    name: str
    version: str
    is_here: bool
    folder: str
    sha256: str
    machine: str
    python: str
    """Minor version that an image must have where its glibc is older; empty: none helps."""
    min_glibc: str
    is_locked: bool


def recipe_named(text: str) -> Recipe:
    """NAME or NAME@VERSION. Raises ConfigError."""
    name, _, version = text.partition("@")
    return recipe_of(name, version or None)


def store() -> BundleStore:
    return BundleStore(load_settings().agents_dir)


def add_bundles(names: Sequence[str]) -> list[tuple[Bundle, bool]]:
    chosen = [recipe_named(name) for name in names]
    if not chosen:
        raise UsageError("no client was named", remedy=f"choose from {', '.join(recipes())}")
    return [add(store(), recipe) for recipe in chosen]


def list_bundles() -> list[Listed]:
    """Bundles that are here, then those that could be."""
    here = store().list()
    rows = [_row(bundle) for bundle in here]
    names = {bundle.name for bundle in here}
    rows += [
        Listed(recipe.name, recipe.version, False, "", "", "", "", recipe.min_glibc or "", False)
        for recipe in recipes().values()
        if recipe.bundle not in names
    ]
    return rows


def remove_bundle(name: str) -> str:
    recipe = recipe_named(name)
    store().remove(recipe.bundle)
    return recipe.bundle


def check_bundle(name: str) -> str:
    """Run each of its programs for its version in a sandbox. Raises WorkFailed."""
    recipe = recipe_named(name)
    bundle = store().find(recipe.bundle)
    if digest(bundle.folder) != bundle.manifest.sha256:
        raise WorkFailed(
            f"bundle {bundle.name} was changed after it was made",
            remedy=f"run `mainspring agents remove {recipe.name}@{recipe.version}`, then add it",
        )
    return asyncio.run(_try(recipe, bundle))


async def _try(recipe: Recipe, bundle: Bundle) -> str:
    inside = f"{BUNDLES}/{bundle.name}"
    with tempfile.TemporaryDirectory(prefix="mainspring-check-") as state:
        backend = BwrapBackend(Path(state))
        sandbox = await backend.open(
            SandboxSpec(
                SandboxId("check"),
                "/testbed",
                files={"README": "check\n"},
                mounts={inside: bundle.folder},
                limits=LIMITS,
            )
        )
        try:
            versions: list[str] = []
            for program, start in recipe.programs.items():
                # A Python for scripts, with the client's packages, takes one.
                is_for_scripts = start == "python:runpy"
                argument = "/dev/null" if is_for_scripts else recipe.version_argument
                result = await sandbox.run(
                    program, f"{inside}/bin/{program} {argument}", CHECK_TIMEOUT_S
                )
                text = " ".join(result.output.decode(errors="replace").split())
                if result.returncode != 0:
                    raise WorkFailed(
                        f"bundle {bundle.name}: {program} {argument} ended with "
                        f"{result.returncode} in a sandbox: {text[-TAIL_CHARS:] or 'no output'}",
                        remedy="docs/agents.md has what each client needs of an image",
                    )
                versions.append(_version_in(text, recipe))
            return "; ".join(versions)
        finally:
            await sandbox.close()


def _version_in(text: str, recipe: Recipe) -> str:
    """Version that a program tells: all that it prints when it is asked for that alone."""
    if recipe.version_argument != "--version":
        named = re.search(rf"\b{re.escape(recipe.version)}\b", text)
        return named[0] if named else textwrap.shorten(text, TAIL_CHARS, placeholder=" ...")
    return textwrap.shorten(text, TAIL_CHARS, placeholder=" ...")


def _row(bundle: Bundle) -> Listed:
    manifest = bundle.manifest
    return Listed(
        manifest.name,
        manifest.version,
        True,
        str(bundle.folder),
        manifest.sha256,
        manifest.machine,
        manifest.python or "",
        manifest.min_glibc or "",
        manifest.is_locked,
    )
