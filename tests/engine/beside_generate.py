"""Speed of the policy server beside transformers' own batched `generate`, in one run.

    OMP_NUM_THREADS=1 python -m tests.engine.beside_generate MODEL [CASE ..]

Prints a JSON line for each case: CPU seconds of both for the same prompts and new tokens, with the
log-prob of each, and how many times as long `generate` takes; the best of two rounds in turn, as
other work on the machine only slows both.
"""

import json
import random
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from engine.model.served_model import ServedModel
from engine.scheduler import Scheduler
from tests.engine.company import request

ROUNDS = 2
CONTEXT = 2048


@dataclass(frozen=True, slots=True)
class Case:
    requests: int
    prompt: int
    """Tokens of each prompt."""
    shared: int
    """Tokens with which all prompts begin alike."""
    reply: int


CASES = {
    "1": Case(1, 64, 0, 48),
    "16": Case(16, 64, 0, 96),
    "16-long-prompts": Case(16, 200, 0, 24),
    "16-shared": Case(16, 200, 180, 24),
    "16-shared-long": Case(16, 600, 580, 32),
}


def prompts_of(case: Case, vocab_size: int) -> list[list[int]]:
    source = random.Random(0)

    def drawn(num: int) -> list[int]:
        return [source.randrange(vocab_size) for _ in range(num)]

    beginning = drawn(case.shared)
    return [beginning + drawn(case.prompt - case.shared) for _ in range(case.requests)]


def engine_s(scheduler: Scheduler, prompts: list[list[int]], reply: int) -> float:
    scheduler.flush()
    for seed, ids in enumerate(prompts):
        sequence = request(ids, seed, reply)
        sequence.stop_ids = frozenset()
        scheduler.submit(sequence)
    began = time.process_time()
    while scheduler.busy:
        scheduler.step()
    return time.process_time() - began


@torch.inference_mode()
def generate_s(model: Any, prompts: list[list[int]], reply: int) -> float:
    ids = torch.tensor(prompts)
    began = time.process_time()
    found = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=reply,
        min_new_tokens=reply,
        do_sample=True,
        top_k=0,
        pad_token_id=0,
        return_dict_in_generate=True,
        output_logits=True,
    )
    for place, logits in enumerate(found.logits, len(prompts[0])):
        torch.log_softmax(logits.float(), -1).gather(1, found.sequences[:, place, None])
    return time.process_time() - began


def main() -> None:
    torch.set_num_threads(1)
    directory = Path(sys.argv[1])
    served = ServedModel(directory, CONTEXT)
    plain: Any = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    plain.generation_config.eos_token_id = None
    for name in sys.argv[2:] or CASES:
        case = CASES[name]
        prompts = prompts_of(case, served.vocab_size)
        scheduler = Scheduler(served, weight_version="0", max_batch=case.requests)
        rounds = [
            (engine_s(scheduler, prompts, case.reply), generate_s(plain, prompts, case.reply))
            for _ in range(ROUNDS)
        ]
        ours, theirs = (min(each) for each in zip(*rounds, strict=True))
        told = {"engine_s": round(ours, 2), "generate_s": round(theirs, 2)}
        print(json.dumps({"case": name, **asdict(case), **told, "ratio": round(theirs / ours, 2)}))
        sys.stdout.flush()


if __name__ == "__main__":
    main()
