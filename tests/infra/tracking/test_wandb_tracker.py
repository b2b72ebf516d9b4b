"""A campaign in an offline run of real Weights & Biases: each step once, whatever was killed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("wandb", reason="the extra wandb is not installed")

from infra.tracking.wandb_files import BLOCK_BYTES, ENTRY_HEADER, HEADER, rows_of
from mainspring.errors import ServiceError
from tests.infra.tracking.tracked import UID, step

ROOT = Path(__file__).parents[3]
PROGRAM = Path(__file__).with_name("write_rows.py")


def write(folder: Path, *given: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(PROGRAM), str(folder), *map(str, given)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "WANDB_API_KEY": "k" * 40},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"wandb/offline-run-*/run-{UID.replace('-', '')}.wandb"))


def test_processes_that_are_killed_write_each_step_once(tmp_path: Path) -> None:
    done = write(tmp_path, 1, 40)
    assert done.returncode == 0, done.stderr
    assert write(tmp_path, 1, 60, "kill").returncode == -9
    last = write(tmp_path, 1, 60)
    assert last.returncode == 0, last.stderr
    assert 40 <= int(last.stdout.split()[-1]) <= 60
    rows = [row for file in files(tmp_path) for row in rows_of(file)]
    assert sorted(row["policy_version"] for row in rows) == [*range(1, 61)]
    assert [row["_step"] for row in rows] == [*range(60)], "one run: later files continue its rows"
    assert {row["loss"] for row in rows} == {step(n).figures["loss"] for n in range(1, 61)}
    assert not any("mfu" in row for row in rows)
    everything = b"".join(each.read_bytes() for each in tmp_path.rglob("*") if each.is_file())
    assert b"k" * 40 not in everything, "the key is on disk"


def test_a_file_that_is_cut_off_anywhere_gives_its_whole_rows(tmp_path: Path) -> None:
    assert write(tmp_path, 1, 5).returncode == 0
    [file] = files(tmp_path)
    whole, content = list(rows_of(file)), file.read_bytes()
    assert len(whole) == 5
    cut = tmp_path / "cut.wandb"
    for end in range(0, len(content), 7):
        cut.write_bytes(content[:end])
        if end == 0 or end >= len(HEADER):
            found = list(rows_of(cut))
            assert found == whole[: len(found)]


def test_an_entry_over_several_blocks_is_one_row(tmp_path: Path) -> None:
    from wandb.proto.wandb_internal_pb2 import HistoryItem, HistoryRecord, Record

    text = "x" * (2 * BLOCK_BYTES)
    items = [HistoryItem(key="point", value_json=json.dumps(text))]
    payload = Record(history=HistoryRecord(item=items)).SerializeToString()
    content, at = HEADER + bytes(3), 0
    while at < len(payload):
        room = BLOCK_BYTES - len(content) % BLOCK_BYTES - ENTRY_HEADER.size
        part = payload[at : at + room]
        kind = 2 if at == 0 else 4 if at + len(part) == len(payload) else 3
        content += ENTRY_HEADER.pack(0, len(part), kind) + part
        at += len(part)
    file = tmp_path / "long.wandb"
    file.write_bytes(content)
    assert list(rows_of(file)) == [{"point": text}]


def test_a_file_of_another_format_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "run.wandb"
    file.write_bytes(b"SQLite format 3" + bytes(100))
    with pytest.raises(ServiceError, match="not a run of Weights & Biases"):
        list(rows_of(file))
