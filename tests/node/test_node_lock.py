"""A home is one node's: its sandboxes are not taken for another one's abandoned ones."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mainspring.errors import UsageError
from mainspring.ids import NodeId
from node.lock import NodeLock

HOLDER = """
import sys
from pathlib import Path
from mainspring.ids import NodeId
from node.lock import NodeLock
lock = NodeLock(Path(sys.argv[1]), NodeId(sys.argv[2]))
assert lock.take_at_once()
lock.take_home()
print("holds", flush=True)
sys.stdin.read()
"""


def taken(home: Path, node: str) -> NodeLock:
    lock = NodeLock(home, NodeId(node))
    assert lock.take_at_once()
    lock.take_home()
    return lock


@pytest.mark.parametrize("first", ["a", "home.taken", "home", "../a b"])
def test_another_node_is_refused_by_name_until_the_first_has_ended(
    tmp_path: Path, first: str
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path), first],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"holds\n"
        with pytest.raises(UsageError) as refused:
            taken(tmp_path, "b")
        said = f"{tmp_path} is the home of node {first} (pid {holder.pid} on {os.uname().nodename})"
        assert refused.value.message.startswith(f"{said}, and this is node b")
        taken(tmp_path / "another", "b")
        holder.kill()
    taken(tmp_path, "c")
