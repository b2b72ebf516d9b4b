"""A sandbox backend of your own: bubblewrap, and a journal of who opened what."""

import json
import time

from infra.sandbox.bubblewrap.backend import BwrapBackend
from infra.sandbox.protocol import BackendPlace, Sandbox, SandboxSpec


class JournalBackend(BwrapBackend):
    """Takes all that makes a sandbox from bubblewrap's backend."""

    def __init__(self, place: BackendPlace) -> None:
        super().__init__(place.state_dir)
        self.name = place.name
        self.journal = place.state_dir / "journal.jsonl"

    async def open(self, spec: SandboxSpec) -> Sandbox:
        sandbox = await super().open(spec)
        entry = {"opened_at": time.time(), "sandbox": spec.id, **spec.labels}
        with self.journal.open("a") as journal:
            journal.write(json.dumps(entry) + "\n")
        return sandbox
