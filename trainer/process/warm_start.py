"""The warm start of the bundled model: supervised steps from random weights to version 0.

It teaches the form of the campaign's agent, with its context. Invariants: what it makes is a
function of configuration and seed; one that was cut off resumes from its last checkpoint with the
same batches, in a reproducible campaign under the same stamp. Imported by
`trainer.process.backend`, where version 0 is still to be made.
"""

import random
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from bundled.forms import taught_agent
from bundled.served_text import ServedText
from bundled.trajectories import Writer
from bundled.warm_start_data import copy_batch, supervised_batch
from mainspring.algorithms.schedule import Schedule
from mainspring.config.training.optimizer import WarmStartConfig
from mainspring.training.step_metrics import TrainerJob
from mainspring.trajectories.sequences import WeightedSequence
from trainer.engines.checkpoint import Identity
from trainer.process.driver import TrainerDriver
from trainer.step.schedule import copy_scale, warm_start_scale

SAVE_EVERY = 100
"""Steps between checkpoints: a crash repeats about 15 s of work."""
REPORT_EVERY = 10


def warm_start(
    driver: TrainerDriver,
    job: TrainerJob,
    warm: WarmStartConfig,
    base: Path,
    directory: Path,
    progress: Callable[[str], None],
) -> None:
    """Train the ranks of `driver`, which hold the weights of `base`; checkpoints go to `directory`.
    Raises TrainerLost, CheckpointUnusable, and ConfigError for an agent that cannot be taught."""
    config = job.config
    if config.schedule is Schedule.REPRODUCIBLE:
        # Version 0 is of one stamp: what another machine has begun is not resumed on this one.
        directory /= driver.stamp.digest
    tokenizer = AutoTokenizer.from_pretrained(base)
    writer = Writer(taught_agent(config.agent), config.policy, ServedText(tokenizer))
    done = _resume(driver, job, directory)
    total = warm.copy_steps + warm.steps
    with ThreadPoolExecutor(max_workers=1) as ahead:  # draws a batch while the last one trains

        def draw(step: int) -> "Future[tuple[list[WeightedSequence], float]]":
            return ahead.submit(batch_of, config.seed, step, warm, tokenizer, writer)

        drawn = draw(done)
        for step in range(done, total):
            batch, scale = drawn.result()
            drawn = draw(step + 1)
            loss = driver.supervised_step(batch, scale)
            if step % REPORT_EVERY == 0:
                progress(f"warm start {step} of {total}, loss {loss:.2f}")
            if (step + 1) % SAVE_EVERY == 0:
                identity = Identity(origin=job.origin, version=0, batch=f"warm start {step + 1}")
                driver.save(directory / f"{step + 1:05d}", identity, job.epoch)


def _resume(driver: TrainerDriver, job: TrainerJob, directory: Path) -> int:
    """Load the newest checkpoint; how many steps it has behind it."""
    complete = sorted(path for path in directory.glob("[0-9]" * 5) if path.is_dir())
    if not complete:
        return 0
    driver.load(complete[-1], job.origin, version=0)
    return int(complete[-1].name)


def batch_of(
    seed: int, step: int, warm: WarmStartConfig, tokenizer: PreTrainedTokenizerBase, writer: Writer
) -> tuple[list[WeightedSequence], float]:
    """Batch and rate factor of one step: a function of the seed and the step alone."""
    rng = random.Random(f"warm-start/{seed}/{step}")
    if step < warm.copy_steps:
        return copy_batch(rng, len(tokenizer), warm.copy_batch_size), copy_scale(step)
    batch = supervised_batch(rng, writer, warm.batch_size, warm.context_loss_weight)
    return batch, warm_start_scale(step - warm.copy_steps, warm.steps)
