"""Files as a tar archive, made in memory. Imported by the modules beside this file."""

import io
import tarfile
from collections.abc import Mapping


def tar_of(files: Mapping[str, bytes], mode: int) -> bytes:
    """By path inside the archive; all with the same permissions."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for path, content in files.items():
            member = tarfile.TarInfo(path)
            member.size = len(content)
            member.mode = mode
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()
