"""The bundles of this machine: one folder each, made once, found by name.

Owns the folder of bundles. Invariants: a bundle appears whole, under `<name>-<version>`, and never
changes; its manifest is written last; what another process is making is not listed. Imported by
the sandbox node, which mounts them, and by `mainspring agents`.
"""

import hashlib
import os
import platform
import shutil
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from mainspring.artifacts.file_digest import sha256_of
from mainspring.config.agents.agent import AgentConfig
from mainspring.config.settings import configured_settings
from mainspring.errors import ConfigError
from mainspring.programs.profile import BUNDLES
from mainspring.programs.profiles.choice import is_program, profile_for

MANIFEST = "manifest.json"
ANY_MACHINE = "any"
_CHANGES = "__pycache__"
"""Python writes the time of a source into it."""


class BundleMissing(ConfigError):
    """This machine has no such bundle, or not a whole one."""


class BundleManifest(BaseModel):
    model_config = ConfigDict(frozen=True)

    name: str
    version: str
    packages: tuple[str, ...]
    """As npm or pip was asked for them."""
    programs: tuple[str, ...]
    """In `bin`."""
    sha256: str
    """Over names, modes and contents of all files but this one."""
    machine: str
    """Architecture that its programs are for, or ANY_MACHINE."""
    python: str | None = None
    """Minor version of its own Python; the image must have one where its glibc is older."""
    min_glibc: str | None = None
    """Oldest glibc that the image may have; None: it needs none."""
    is_locked: bool = False
    """Every package was one of the lock file."""


@dataclass(frozen=True, slots=True)
class Bundle:
    folder: Path
    manifest: BundleManifest

    @property
    def name(self) -> str:
        return self.folder.name


class BundleStore:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def find(self, name: str) -> Bundle:
        """Raises BundleMissing."""
        folder = self.folder / name
        try:
            manifest = BundleManifest.model_validate_json((folder / MANIFEST).read_bytes())
        except FileNotFoundError:
            raise BundleMissing(
                f"bundle {name} is not on this machine (no {folder})",
                remedy=f"run `mainspring agents add {_asked(name)}` on every sandbox node",
            ) from None
        except ValidationError as error:
            raise BundleMissing(
                f"bundle {name} has no manifest that can be read: {error.errors()[0]['msg']}",
                remedy=f"run `mainspring agents remove {name}`, then `mainspring agents add`",
            ) from None
        return Bundle(folder, manifest)

    def list(self) -> list[Bundle]:
        if not self.folder.is_dir():
            return []
        names = sorted(path.name for path in self.folder.iterdir() if path.name[0] != ".")
        return [self.find(name) for name in names if (self.folder / name / MANIFEST).exists()]

    def remove(self, name: str) -> None:
        """Sandboxes that have it mounted keep it. Raises BundleMissing."""
        bundle = self.find(name)
        doomed = self.folder / f".removed-{uuid.uuid4().hex}"
        bundle.folder.rename(doomed)
        shutil.rmtree(doomed)


def digest(folder: Path) -> str:
    """Digest of all files but the manifest; compiled Python is left out."""
    sha256 = hashlib.sha256()
    for path in sorted(_files(folder)):
        relative = path.relative_to(folder)
        if relative == Path(MANIFEST):
            continue
        sha256.update(f"{relative}\0".encode(errors="surrogateescape"))
        if path.is_symlink():
            sha256.update(b"link " + os.fsencode(os.readlink(path)) + b"\0")
            continue
        runs = "x" if os.access(path, os.X_OK) else "-"
        sha256.update(f"{runs} {sha256_of(path)}\0".encode())
    return sha256.hexdigest()


def bundle_of(agent: AgentConfig) -> Bundle | None:
    """This machine's bundle for the agent; None: it needs none. Raises BundleMissing."""
    name = profile_for(agent).bundle if is_program(agent) else None
    return None if name is None else BundleStore(configured_settings().agents_dir).find(name)


def mounts_for(agent: AgentConfig) -> Mapping[str, Path]:
    """Mounts of this machine that an agent's sandbox needs. Raises BundleMissing."""
    bundle = bundle_of(agent)
    if bundle is None:
        return {}
    here, machine = platform.machine(), bundle.manifest.machine
    if machine not in (here, ANY_MACHINE):
        raise BundleMissing(
            f"bundle {bundle.name} is for {machine}, and this machine is {here}",
            remedy=f"run `mainspring agents remove {_asked(bundle.name)}`, then `mainspring agents "
            "add` on this machine",
        )
    return {f"{BUNDLES}/{bundle.name}": bundle.folder}


def _files(folder: Path) -> list[Path]:
    return [
        Path(top) / name
        for top, folders, names in os.walk(folder)
        for name in (
            *names,
            *(subfolder for subfolder in folders if (Path(top) / subfolder).is_symlink()),
        )
        if _CHANGES not in Path(top).parts
    ]


def _asked(name: str) -> str:
    client, dash, version = name.rpartition("-")
    return f"{client}@{version}" if dash else name
