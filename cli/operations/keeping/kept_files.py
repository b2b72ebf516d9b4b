"""Which files of a campaign's folder are copied into an archive or a backup.

Invariant: version 0 (tokenizer, reference of a KL penalty) goes with every copy, and so does the
newest checkpoint, without which training does not resume. Work in progress is left out: it is made
again from the store.
"""

import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from infra.db.training.policies import PolicyRecord
from mainspring.artifacts import layout
from mainspring.artifacts.retention import Checkpoints
from mainspring.ids import CampaignId

_IN_PROGRESS = ("warm", "batches")


def chosen(versions: Sequence[PolicyRecord], checkpoints: Checkpoints) -> list[PolicyRecord]:
    if checkpoints is Checkpoints.NONE or not versions:
        return []
    if checkpoints is Checkpoints.ALL:
        return list(versions)
    resumable = [policy for policy in versions if policy.checkpoint is not None]
    numbers = {versions[0].version, versions[-1].version, *(r.version for r in resumable[-1:])}
    return [policy for policy in versions if policy.version in numbers]


def files_of(
    home: Path, campaign: CampaignId, versions: Sequence[PolicyRecord]
) -> Iterator[tuple[Path, Path]]:
    """Files of the folder but for other versions and work in progress: each with its path below
    the campaign's folder."""
    own = layout.campaign_folder(home, campaign)
    folders = {layout.policy(home, campaign, policy.version) for policy in versions}
    policies = layout.policies(home, campaign)
    for file in sorted(own.rglob("*")):
        below = file.relative_to(own)
        if not file.is_file() or below.parts[0] in _IN_PROGRESS:
            continue
        if file.is_relative_to(policies) and not folders & set(file.parents):
            continue
        yield file, below


def copy(
    files: Sequence[tuple[Path, Path]], into: Path, progress: Callable[[int, int], None]
) -> None:
    for number, (file, below) in enumerate(files, start=1):
        target = into / below
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(file, target)
        progress(number, len(files))
