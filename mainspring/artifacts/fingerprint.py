"""The fingerprint of a policy version: what it was made of and what it is, as SHA-256 in hex.

Two campaigns of equal content have equal fingerprints, whatever their names. The first of the three
that differs tells where they parted: in what was played, in how it was trained, or in the update.
Pure; stored with each policy version of a reproducible campaign.
"""

from pydantic import BaseModel, ConfigDict


class Fingerprint(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    batch: str | None = None
    """Digest of the samples in order, without the campaign's names; None for version 0."""
    gradient: str | None = None
    """Digest of every update's gradients before they are clipped; None where nothing moved, for
    version 0, and of a step engine that does not tell."""
    weights: str | None
    """Digest of the exported weights; None where the files hold another dtype than floats."""
