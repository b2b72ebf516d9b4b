"""Name and memory of the GPUs that this process may use. Asks nvidia-smi, and only where there is
one; takes which GPUs count from `local_engines`."""

import shutil
import subprocess
from dataclasses import dataclass

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class GpusHere:
    name: str
    num: int
    memory_bytes: int
    """Memory of the smallest one."""


def gpus_here() -> GpusHere | None:
    """None without a GPU, or where nvidia-smi does not answer."""
    if shutil.which("nvidia-smi") is None:
        return None
    from cli.operations.machine.local_engines import visible_gpus  # half a second of imports

    visible = visible_gpus()
    if not visible:
        return None
    command = ["nvidia-smi", "--query-gpu=memory.total,name", "--format=csv,noheader,nounits"]
    try:
        output = subprocess.run(
            [*command, f"--id={','.join(visible)}"],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return parsed(output.stdout) if output.returncode == 0 else None


def parsed(lines: str) -> GpusHere | None:
    """From lines as "81559, NVIDIA H100 80GB HBM3"."""
    rows = [line.split(", ", 1) for line in lines.splitlines() if ", " in line]
    sizes = [int(memory) for memory, _ in rows if memory.strip().isdigit()]
    if not sizes:
        return None
    return GpusHere(rows[0][1].strip(), len(sizes), min(sizes) * MIB)
