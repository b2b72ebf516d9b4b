"""The formats that trajectories are exported in. Imported by the command line and by exports."""

from enum import StrEnum


class TrajectoryFormat(StrEnum):
    FOLDERS = "folders"
    """A folder a rollout: traj.json, patch.diff, meta.json."""
    ATIF = "atif"
    """Harbor's Agent Trajectory Interchange Format, a JSON file a rollout."""
    SFT = "sft"
    """Chat JSONL for supervised fine-tuning, a line a rollout; resolved ones only by default."""
    PARQUET = "parquet"
    """One parquet file with texts, tokens, log-probs and rewards, a row a rollout."""

    @property
    def is_one_file(self) -> bool:
        return self in (TrajectoryFormat.SFT, TrajectoryFormat.PARQUET)
