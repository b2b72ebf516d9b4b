"""A wheel that pip installs without a network."""

import zipfile
from pathlib import Path


def make_wheel(tmp_path: Path, module: str) -> Path:
    """Of the package `tool`, whose one module has this text."""
    wheel = tmp_path / "tool-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as made:
        made.writestr("tool.py", module)
        made.writestr(
            "tool-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tool\nVersion: 1.0\n"
        )
        made.writestr(
            "tool-1.0.dist-info/WHEEL",
            "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        made.writestr("tool-1.0.dist-info/RECORD", "tool.py,,\ntool-1.0.dist-info/METADATA,,\n")
    return wheel
