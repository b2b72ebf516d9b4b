"""Reading the files of a task that is a folder. Imported by the sources whose tasks are folders."""

from pathlib import Path

from infra.sources.protocol import RowError, RowProblem


def read_text(path: Path) -> str:
    """As it is, line ends included. Raises RowError."""
    try:
        return path.read_bytes().decode()
    except FileNotFoundError:
        raise RowError(RowProblem.MISSING_FIELD, f"{path.name} is missing") from None
    except UnicodeDecodeError:
        raise RowError(
            RowProblem.UNSUPPORTED, f"{path.name} is not UTF-8 text; binary files need an image"
        ) from None
    except OSError as error:
        raise RowError(RowProblem.MISSING_FIELD, f"{path.name}: {error.strerror}") from None


def is_executable(path: Path) -> bool:
    return bool(path.stat().st_mode & 0o100)


def read_tree(folder: Path) -> dict[str, str]:
    """Text by path below the folder; empty when there is no folder. Raises RowError."""
    return {path: read_text(file) for path, file in list_tree(folder).items()}


def list_tree(folder: Path) -> dict[str, Path]:
    """Files by path below the folder; empty when there is no folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path for path in files}
