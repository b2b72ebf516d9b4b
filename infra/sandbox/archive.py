"""Files as a tar archive, made in memory. Imported by the modules beside this file."""

import io
import tarfile
from collections.abc import Collection, Mapping

EXECUTABLE = 0o755


def tar_of(files: Mapping[str, bytes], mode: int, executables: Collection[str] = ()) -> bytes:
    """By path inside the archive; all with the same permissions but for `executables`."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for path, content in files.items():
            member = tarfile.TarInfo(path)
            member.size = len(content)
            member.mode = EXECUTABLE if path in executables else mode
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()
