"""Whether a policy version's files are still as its trainer wrote them.

A trainer leaves a manifest beside each version (`trainer.engines.checkpoint`) and compares what it
loads itself. Tokenizer, chat template and the weights for engines are read elsewhere: altered while
a campaign was stopped, they would change every prompt without a word. A model directory without a
manifest is one that no trainer wrote, and nothing is compared. Used where a tokenizer is loaded
and where weights are published.
"""

import json
from pathlib import Path

from mainspring.artifacts.file_digest import altered, sha256_of
from mainspring.artifacts.layout import MANIFEST
from mainspring.ids import CampaignId
from mainspring.training.training_faults import CheckpointUnusable

WEIGHTS = ".safetensors"


def verify_written(directory: Path, campaign: CampaignId, *, weights: bool) -> None:
    """Compare what lies in a version's `directory` for engines with its manifest; `weights`: also
    the large files. Raises CheckpointUnusable."""
    manifest = directory.parent / MANIFEST
    if not manifest.is_file():
        return
    try:
        files = json.loads(manifest.read_text())["files"]
        expected = {str(entry["path"]): str(entry["sha256"]) for entry in files}
    except (OSError, ValueError, KeyError, TypeError):
        raise _unusable(campaign, directory, f"cannot be compared: {MANIFEST} is damaged") from None
    for path, sha256 in expected.items():
        if not path.startswith(f"{directory.name}/") or (path.endswith(WEIGHTS) and not weights):
            continue
        file = directory.parent / path
        if not file.is_file():
            raise _unusable(campaign, directory, f"lacks its file {file.name}")
        if (digest := sha256_of(file)) != sha256:
            raise _unusable(campaign, directory, altered(file.name, digest, sha256))


def _unusable(campaign: CampaignId, directory: Path, why: str) -> CheckpointUnusable:
    return CheckpointUnusable(
        f"campaign {campaign}: policy version {directory} {why}",
        remedy="restore it from a backup, then start the campaign again",
    )
