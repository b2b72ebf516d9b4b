"""The manifest of an archive: whose it is, and every file of it with its digest.

Invariants: it is written last, and has a digest of its own, so that what was cut, edited or mixed
is refused by name before anything is stored; an unknown format is refused.
"""

import hashlib
from pathlib import Path

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


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid")


class ArchivedFile(_Model):
    sha256: str
    num_bytes: int
    num_rows: int | None = None
    """Of a table."""


class ArchivedVersion(_Model):
    version: int
    uid: str
    path: str
    """Folder of its weights when it was archived."""
    checkpoint: str | None
    identity_sha256: str | None
    """Digest of the identity file of its folder; None: the folder was not found."""
    is_copied: bool = False


class ArchiveManifest(_Model):
    format: int = FORMAT
    campaign: CampaignId
    uid: str
    kind: CampaignKind
    status: CampaignStatus
    schema_revision: str
    mainspring: str
    """Version that wrote it."""
    store: str
    """Identity of the store it was read from."""
    home: str
    """State folder that the paths of its versions are in."""
    archived_at: str
    num_rollouts: int
    versions: list[ArchivedVersion] = []
    files: dict[str, ArchivedFile] = {}
    """By their path in the archive."""
    digest: str = ""
    """SHA-256 of the rest of the manifest."""

    def signed(self) -> "ArchiveManifest":
        return self.model_copy(update={"digest": self._own_digest()})

    def _own_digest(self) -> str:
        rest = self.model_copy(update={"digest": ""}).model_dump_json()
        return hashlib.sha256(rest.encode()).hexdigest()

    @classmethod
    def read(cls, folder: Path) -> "ArchiveManifest":
        """Raises UsageError when the folder holds no archive, or its manifest was edited."""
        file = folder / MANIFEST_FILE
        try:
            raw = file.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(
                f"{folder} holds no archive: {error}",
                remedy="give a folder that `mainspring campaign archive` wrote",
            ) from None
        try:
            found = cls.model_validate_json(raw)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "JSON"
            raise UsageError(
                f"{file} is not a manifest of format {FORMAT}: {where}: {first['msg']}",
                remedy="it was cut or edited, or another version of Mainspring wrote it: take "
                "another copy of the archive, or that version",
            ) from None
        if found.format != FORMAT:
            raise UsageError(
                f"{file} has format {found.format}, this version reads {FORMAT}",
                remedy=f"use the version of Mainspring that wrote it ({found.mainspring})",
            )
        if found.digest != found._own_digest():
            raise UsageError(
                f"{file} was edited: its own digest is another one",
                remedy="take another copy of the archive",
            )
        return found

    def check(self, folder: Path, name: str) -> None:
        """Compare one file with the manifest. Raises UsageError when it is missing or altered."""
        file, expected = folder / name, self.files[name]
        try:
            size = file.stat().st_size
            found = sha256_of(file) if size == expected.num_bytes else None
        except OSError as error:
            raise _damaged(folder, f"lacks the file {name}: {error.strerror}") from None
        if found is None:
            raise _damaged(folder, f"has {size} bytes of {name}, expected {expected.num_bytes}")
        if found != expected.sha256:
            raise _damaged(folder, altered(name, found, expected.sha256))


def archived_file(file: Path, num_rows: int | None = None) -> ArchivedFile:
    return ArchivedFile(sha256=sha256_of(file), num_bytes=file.stat().st_size, num_rows=num_rows)


def _damaged(folder: Path, what: str) -> UsageError:
    return UsageError(
        f"archive {folder} {what}", remedy="take another copy of the archive; nothing was restored"
    )
