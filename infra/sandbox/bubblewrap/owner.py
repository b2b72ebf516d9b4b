"""As whom a sandbox's processes run, outside and inside.

Invariants: never root outside. An unprivileged node's sandboxes run as its own user. Root hands
each sandbox over to a user id that no other has, so that RLIMIT_NPROC counts this sandbox alone.
Inside, the id is 1000 in both cases, so that commands print the same everywhere; only where root
cannot make user namespaces, it is the outer one. Imported by the bubblewrap backend.
"""

import os
import zlib
from dataclasses import dataclass
from pathlib import Path

HOME = "/home/agent"
INSIDE_ID = 1000
"""User and group inside, where a user namespace maps them."""
FIRST_UID = 0x4D53_0000
"""User ids for sandboxes of root: far above anything people, packages or systemd hand out."""
NUM_UIDS = 1 << 16
NOBODY = 65534


@dataclass(frozen=True, slots=True)
class Owner:
    uid: int | None
    """User id outside that root hands over to; None: the node's own, in a user namespace."""
    is_mapped: bool = False
    """Root makes a user namespace too (`map_ids`)."""

    @property
    def inside(self) -> int:
        return INSIDE_ID if self.uid is None or self.is_mapped else self.uid

    def accounts(self) -> tuple[str, str]:
        """The passwd and group files of a sandbox."""
        shown = self.inside
        return (
            f"root:x:0:0:root:/root:/bin/bash\nagent:x:{shown}:{shown}:agent:{HOME}:/bin/bash\n",
            f"root:x:0:\nagent:x:{shown}:\n",
        )

    def map_ids(self, pid: int) -> None:
        """In the user namespace of process `pid`, which must not have begun yet. Root is mapped
        as well: it owns what bwrap mounts there, and no process of the sandbox can become it."""
        for name in ("uid_map", "gid_map"):
            Path(f"/proc/{pid}/{name}").write_text(f"0 0 1\n{self.inside} {self.uid} 1\n")


def owner_of(sandbox: str, *, is_mapped: bool = False) -> Owner:
    """`is_mapped`: where root may make user namespaces; otherwise without effect."""
    if os.geteuid() != 0:
        return Owner(None)
    ranges = (line.split() for line in Path("/proc/self/uid_map").read_text().splitlines())
    if any(int(start) <= FIRST_UID < int(start) + int(count) for start, _, count in ranges):
        uid = FIRST_UID + zlib.crc32(sandbox.encode()) % NUM_UIDS
    else:
        uid = NOBODY  # root of a small user namespace: high ids do not exist there
    return Owner(uid, is_mapped)
