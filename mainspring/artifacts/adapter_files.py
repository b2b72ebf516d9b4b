"""The folder of a policy version's adapters: PEFT's two files, beside the whole model's.

Imported by the trainer, which writes them, by engines, and by the client that names them.
"""

from pathlib import Path

from mainspring.errors import ModelError

DIRECTORY = "adapter"
"""In the Hugging Face folder of a version."""
CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"


def adapter_of(version: Path) -> Path:
    """Raises ModelError where the folder of a version has no adapters."""
    directory = version / DIRECTORY
    for name in (CONFIG, WEIGHTS):
        if not (directory / name).is_file():
            raise ModelError(
                f"policy version {version}: {directory / name} is missing",
                remedy='set policy.publish = "disk": the version is a whole model as well',
            )
    return directory
