"""A small model, its samples as JSONL, and a supervised run on them."""

import json
import random
from pathlib import Path

from bundled.generator import draw_instance
from tests.bundled_chats import drawn_chat

ROWS = 24


def write_chats(path: Path, number: int = ROWS) -> Path:
    """Rollouts that the bundled model's warm start is made of, as chats."""
    rng = random.Random("sft-tests")
    lines = []
    for _ in range(number):
        messages = drawn_chat(draw_instance(rng, "train", "sft"), rng)
        lines.append(json.dumps({"messages": messages}))
    path.write_text("\n".join(lines) + "\n")
    return path


def run_file(path: Path, chats: Path, name: str, *, num_steps: int = 6, more: str = "") -> Path:
    path.write_text(f"""
name = "{name}"
seed = 3
[[data.sources]]
file = "{chats.name}"
[trainer]
device = "cpu"
num_steps = {num_steps}
batch_size = 4
checkpoint_every = 4
{more}
[trainer.optimizer]
name = "adamw"
lr = 2e-3
warmup_steps = 2
""")
    return path
