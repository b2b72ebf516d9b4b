"""Pythons that have the package verifiers, which Mainspring's own has not: `make verifiers`."""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PRESENT = Path(os.environ.get("VERIFIERS_PYTHON", ROOT / ".venv-verifiers/bin/python"))
CLASSIC = Path(
    os.environ.get("VERIFIERS_CLASSIC_PYTHON", ROOT / ".venv-verifiers-classic/bin/python")
)
ENVIRONMENTS = ROOT / "tests" / "infra" / "environments" / "for_verifiers"
EXAMPLE = ROOT / "examples" / "verifiers"

needs_verifiers = pytest.mark.skipif(
    not PRESENT.exists(), reason=f"no Python with verifiers at {PRESENT}: `make verifiers`"
)
needs_classic = pytest.mark.skipif(
    not CLASSIC.exists(), reason=f"no Python with verifiers 0.3.1 at {CLASSIC}: `make verifiers`"
)
