"""The stamp of a process: what the bits of its results depend on, beside the data.

Equal data under equal stamps give equal bits; under different ones nothing is promised. The trainer
stores its stamp with each policy version, the CPU engine shows its own. Pure; imported by engine,
trainer, activities and the store.
"""

import hashlib
import os

from pydantic import BaseModel, ConfigDict

from mainspring.artifacts.batch_invariance import MKL_VARIABLE
from mainspring.artifacts.cpu import this_cpu


class MachineStamp(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    torch: str
    """Its version."""
    mkl_cbwr: str
    """MKL's branch, as the environment asks for it; "": MKL's own choice."""
    cpu_capability: str
    """The instructions that ATen uses."""
    cpu: str
    """The processor's vendor and widest instructions."""

    def differences(self, other: "MachineStamp") -> list[str]:
        """Fields of `other` that are not the same, as "name VALUE instead of VALUE"."""
        fields, other_fields = self.model_dump(), other.model_dump()
        return [
            f"{name} {other_fields.get(name)!r} instead of {value!r}"
            for name, value in fields.items()
            if other_fields.get(name) != value
        ]


class Stamp(MachineStamp):
    """Stamp of a trainer."""

    micro_batch_tokens: int
    """How a batch is cut, and so the order of its sums."""
    threads_per_rank: int

    @property
    def digest(self) -> str:
        """Short, for the name of a folder."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()[:12]


def machine_stamp(torch_version: str, cpu_capability: str) -> MachineStamp:
    """Stamp of this process; what torch tells is given by those who import it."""
    return MachineStamp(
        torch=torch_version,
        mkl_cbwr=os.environ.get(MKL_VARIABLE, ""),
        cpu_capability=cpu_capability,
        cpu=this_cpu().word,
    )
