"""Speed of the CPU engine as it is and reproducible, side by side, per CPU second.

    OMP_NUM_THREADS=1 MKL_CBWR=AVX512,STRICT python -m tests.engine.decode_speed [MODEL]

Prints JSON: tokens per CPU second of decoding, prompts of 300 tokens, for each number of requests
at once; the best of several rounds in turn, as other work on the machine only slows it. Without
MODEL the bundled one.
"""

import json
import random
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import torch

from bundled.model import make_bundled_model
from engine.model import self_test
from engine.model.served_model import ServedModel
from engine.scheduler import Scheduler
from tests.engine.company import request

PROMPT_TOKENS = 300
REPLY_TOKENS = 48
BATCHES = (1, 8, 32)
ROUNDS = 7


def decode_speed(model: ServedModel, batch: int) -> float:
    source = random.Random(batch)
    scheduler = Scheduler(model, weight_version="0", max_batch=batch)
    for seed in range(batch):
        ids = [source.randrange(model.vocab_size) for _ in range(PROMPT_TOKENS)]
        sequence = request(ids, seed, REPLY_TOKENS)
        scheduler.submit(sequence)
    while scheduler.num_queued:
        scheduler.step()
    began, num_tokens = time.process_time(), 0
    while scheduler.busy:
        num_tokens += len(scheduler.running)
        scheduler.step()
    return num_tokens / (time.process_time() - began)


def main() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        model = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(folder, "bundled")
        if len(sys.argv) == 1:
            make_bundled_model(model, 0)
        usual, exact = ServedModel(model), ServedModel(model, is_reproducible=True)
    began = time.process_time()
    self_test.check(exact)
    test_s = time.process_time() - began
    best: defaultdict[str, dict[int, float]] = defaultdict(dict)
    for _ in range(ROUNDS):
        for batch in BATCHES:
            for name, each in (("usual", usual), ("reproducible", exact)):
                found = decode_speed(each, batch)
                best[name][batch] = max(round(found), best[name].get(batch, 0))
    figures = {"stamp": exact.stamp.model_dump(), "padding": str(exact.padding)}
    print(json.dumps(figures | {"self_test_s": round(test_s, 2), "tokens_per_s": best}, indent=2))


if __name__ == "__main__":
    main()
