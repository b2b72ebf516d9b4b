"""The manifest of an archive or a backup: whose it is, and every file with its digest.

Invariants: it is written last, and has a digest of its own, so that what was cut, edited or mixed
is refused by name before anything is stored; an unknown format is refused.
"""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, ValidationError

from mainspring.artifacts.file_digest import altered, sha256_of
from mainspring.errors import UsageError
from mainspring.ids import CampaignId
from mainspring.status import CampaignKind, CampaignStatus

FORMAT = 1
MANIFEST_FILE = "manifest.json"
TABLES = "tables"
"""Folder of an archive that has a file for each table."""
FILES = "files"
"""Folder of an archive that has what was copied of the campaign's folder."""
WRITTEN_BY = {"archive": "campaign archive", "backup": "backup"}
READ_BY = {"archive": "campaign restore", "backup": "restore"}


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid")


class ArchivedFile(_Model):
    sha256: str
    num_bytes: int
    num_rows: int | None = None
    """Number of rows, where it is a table."""


class ArchivedVersion(_Model):
    version: int
    uid: str
    path: str
    """Folder of its weights when it was archived."""
    checkpoint: str | None
    identity_sha256: str | None
    """Digest of the identity file of its folder; None: the folder was not found."""
    is_copied: bool = False


class SignedManifest(_Model):
    """Manifest of a folder whose files are read back as they were written."""

    what: str
    """The kind of folder."""
    format: int = FORMAT
    mainspring: str
    """Version that wrote it."""
    schema_revision: str
    home: str
    """State folder that the paths of policy versions are in."""
    files: dict[str, ArchivedFile] = {}
    """By their path in the folder."""
    digest: str = ""
    """SHA-256 of the rest of the manifest."""

    def signed(self) -> Self:
        return self.model_copy(update={"digest": self._own_digest()})

    def _own_digest(self) -> str:
        rest = self.model_copy(update={"digest": ""}).model_dump_json()
        return hashlib.sha256(rest.encode()).hexdigest()

    def write(self, folder: Path) -> None:
        """The last file of the folder."""
        (folder / MANIFEST_FILE).write_text(self.signed().model_dump_json(indent=2) + "\n")

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Raises UsageError when the folder is another one, or its manifest was edited."""
        what = cls.model_fields["what"].default
        file = folder / MANIFEST_FILE
        try:
            raw = file.read_text()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is no text"
            raise UsageError(
                f"{folder} holds no {what}: {file.name}: {reason}",
                remedy=f"give a folder that `mainspring {WRITTEN_BY[what]}` wrote",
            ) from None
        try:
            head = _Head.model_validate_json(raw)
            if head.what != what:
                raise UsageError(
                    f"{folder} is another kind of folder: {head.what}, not {what}",
                    remedy=f"read it with `mainspring {READ_BY.get(head.what, '')} {folder}`",
                )
            if head.format != FORMAT:
                raise UsageError(
                    f"{file} has format {head.format}, this version reads {FORMAT}",
                    remedy=f"use the version of Mainspring that wrote it ({head.mainspring})",
                )
            manifest = cls.model_validate_json(raw)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "JSON"
            raise UsageError(
                f"{file} is not a manifest of format {FORMAT}: {where}: {first['msg']}",
                remedy=f"it was cut or edited: take another copy of the {what}",
            ) from None
        if manifest.digest != manifest._own_digest():
            raise UsageError(
                f"{file} was edited: its own digest is another one",
                remedy=f"take another copy of the {what}",
            )
        return manifest

    def check(self, folder: Path, progress: Callable[[int, int], None]) -> None:
        """Compare all files with the manifest. Raises UsageError when one is missing or altered."""
        for number, name in enumerate(self.files, start=1):
            if problem := self._problem(folder, name):
                raise UsageError(
                    f"{self.what} {folder} {problem}",
                    remedy=f"take another copy of the {self.what}; nothing was restored",
                )
            progress(number, len(self.files))

    def _problem(self, folder: Path, name: str) -> str:
        file, expected = folder / name, self.files[name]
        try:
            size = file.stat().st_size
            if size != expected.num_bytes:
                return f"has {size} bytes of {name}, expected {expected.num_bytes}"
            actual = sha256_of(file)
        except OSError as error:
            return f"lacks the file {name}: {error.strerror}"
        return "" if actual == expected.sha256 else altered(name, actual, expected.sha256)


class ArchiveManifest(SignedManifest):
    what: str = "archive"
    campaign: CampaignId
    uid: str
    kind: CampaignKind
    status: CampaignStatus
    store: str
    """Identity of the store it was read from."""
    archived_at: str
    num_rollouts: int
    versions: list[ArchivedVersion] = []


class BackupManifest(SignedManifest):
    what: str = "backup"
    store: str
    """Identity of the store."""
    namespace: str
    """The namespace of its work in Temporal."""
    backed_up_at: str
    versions: dict[str, list[int]]
    """Policy versions with their files, by campaign."""


class _Head(BaseModel):
    what: str
    format: int
    mainspring: str = "unknown"


def archived_file(file: Path, num_rows: int | None = None) -> ArchivedFile:
    return ArchivedFile(sha256=sha256_of(file), num_bytes=file.stat().st_size, num_rows=num_rows)
