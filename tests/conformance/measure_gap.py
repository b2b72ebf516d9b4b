"""Plays a campaign of two steps on each kind of engine; prints its largest log-prob gap, in nats.

    python -m tests.conformance.measure_gap MODEL --home DIR [KIND...]

MODEL: a folder of the bundled model, as a quickstart leaves below campaigns/NAME/policies. vLLM and
SGLang are those of `make test-vllm` and `make test-sglang`.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # its tests are no package

import real_engines
from own_output import save_own_output

CONTEXT = 520
"""SGLang serves two tokens less than it is told."""


def play(kind: str, model: Path, home: Path) -> dict[str, object]:
    with real_engines.started(kind, model, home / f"{kind}.log", context=CONTEXT) as engine:
        values = {
            "name": f"gap-{kind}",
            "policy.model": str(model),
            "policy.engines": json.dumps([engine.url]),
            "policy.api": engine.api.value,
        }
        words = [sys.executable, "-m", "mainspring", "train"]
        words += [str(Path(__file__).with_name("gap.toml")), "--home", str(home), "--json"]
        for field, value in values.items():
            words += ["--set", f"{field}={value}"]
        done = json.loads(subprocess.run(words, check=True, stdout=subprocess.PIPE).stdout)
    return {"engine": kind, **{name: done[name] for name in ("num_rollouts", "max_logprob_gap")}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("kinds", nargs="*", default=real_engines.KINDS, metavar="KIND")
    parser.add_argument("--home", type=Path, required=True)
    given = parser.parse_args()
    home = given.home.absolute()
    home.mkdir(parents=True, exist_ok=True)
    model = save_own_output(given.model, home / "model", seed=0)
    for kind in given.kinds:
        print(json.dumps(play(kind, model, home)), flush=True)


if __name__ == "__main__":
    main()
