"""`mainspring campaign plan`: the model's files, the GPUs here, and the plan as it is printed.

Owns what of a model directory is looked at: config.json, and headers of weights where there are
any. Invariants: starts nothing and asks no service; torch and transformers are not imported.
"""

import re
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from bundled import shape as bundled_shape
from cli.operations.checks.memory_item import memory_here
from cli.operations.machine.gpus_here import GpusHere, gpus_here
from mainspring.agents.choice import check_agents, check_contexts, narrow_contexts
from mainspring.algorithms.choice import check_device
from mainspring.config.campaign import CampaignConfig
from mainspring.config.files.layers import NONE, Overrides
from mainspring.config.files.pairs import warnings
from mainspring.config.files.reading import load_campaign
from mainspring.config.section import BUNDLED
from mainspring.config.training.method_defaults import notes as method_notes
from mainspring.config.training.parallel import Device
from mainspring.errors import ModelError
from mainspring.model_folder.config_file import read_config
from mainspring.model_folder.refusals import FolderUse
from mainspring.model_folder.weights import has_weights
from mainspring.planning.assumptions import Given
from mainspring.planning.changes import Change, changes_that_fit
from mainspring.planning.engine_facts import folder_use
from mainspring.planning.known_models import known_model, known_names
from mainspring.planning.model_shape import ModelShape, is_estimate, read_shape, shape_of
from mainspring.planning.plan import MemoryPlan, plan_of

_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")


@dataclass(frozen=True, slots=True)
class Planned:
    plan: MemoryPlan
    gpu_bytes: int | None
    """Memory of a GPU; None where none was given or seen."""
    gpu_source: str
    changes: list[Change]
    notes: list[str]

    @property
    def fits(self) -> bool:
        return self.gpu_bytes is None or not self.plan.lacks_bytes(self.gpu_bytes)


def plan_campaign(
    file: Path,
    given: Given,
    gpu_memory_gb: float | None,
    model: Path | None,
    overrides: Overrides = NONE,
) -> Planned:
    """Raises ConfigError and ModelError."""
    config = load_campaign(file, overrides=overrides)
    check_agents(config)
    check_device(config.trainer)
    check_contexts(config)
    if model is not None:
        policy = config.policy.model_copy(update={"model": str(model)})
        config = config.model_copy(update={"policy": policy})
    shape, notes = _shape(config)
    notes += method_notes(config.trainer) + warnings(config)
    on_gpus = config.trainer.device is Device.CUDA
    seen = gpus_here() if on_gpus else None
    if seen is not None:
        given = replace(given, gpu_name=seen.name)
    plan = plan_of(config, shape, given)
    notes += _host_notes(plan) + _shared_device_notes(plan)
    notes += ["; ".join(narrow) for narrow in narrow_contexts(config)]
    gpu_bytes, source = _gpu_bytes(gpu_memory_gb, seen) if on_gpus else (None, "")
    changes: list[Change] = []
    if gpu_bytes is not None and plan.lacks_bytes(gpu_bytes):
        changes = changes_that_fit(config, shape, given, gpu_bytes)
    return Planned(plan, gpu_bytes, source, changes, notes)


def _host_notes(plan: MemoryPlan) -> list[str]:
    """Ranks on CPU may run on another machine, so this one's memory refuses nothing."""
    here = memory_here()
    needed = plan.host.peak_bytes
    if plan.config.trainer.device is not Device.CPU or needed <= here:
        return []
    return [
        f"the ranks need {needed / 1e9:.1f} GB of memory, this machine has {here / 1e9:.1f} GB: "
        "lower trainer.micro_batch_tokens or policy.max_context, or train elsewhere"
    ]


def _shared_device_notes(plan: MemoryPlan) -> list[str]:
    trainer = plan.config.trainer
    if not trainer.colocate:
        return []
    where = "GPUs" if trainer.device is Device.CUDA else "machine"
    return [
        f"ranks and engines have the same {where} in turns (trainer.colocate): the larger of both "
        "counts, not their sum; rollouts wait while a step is trained, and ranks wait in the "
        "host's memory"
    ]


def _gpu_bytes(gpu_memory_gb: float | None, seen: GpusHere | None) -> tuple[int | None, str]:
    if gpu_memory_gb is not None:
        return round(gpu_memory_gb * 1e9), "--gpu-memory-gb"
    if seen is not None:
        return seen.memory_bytes, f"{seen.name}, {seen.num} here"
    return None, "no GPU here; give --gpu-memory-gb"


def _shape(config: CampaignConfig) -> tuple[ModelShape, list[str]]:
    """Shape of the model, and what about its directory is worth knowing."""
    model = config.policy.model
    if model == BUNDLED:
        return shape_of(bundled_shape.config(), "the bundled model"), []
    if not config.policy.api.gives_tokens:
        raise ModelError(
            f"policy.model = {model!r} is a name at an endpoint; a plan needs the model's sizes",
            remedy="give its directory with --model; config.json suffices",
        )
    directory, notes = Path(model), list[str]()
    if not directory.is_dir() and (known := known_model(model)) is not None:
        notes.append(
            f"{model} is not on this machine: planned with the sizes of {known.name}, which are "
            "known here"
        )
        directory = known
    if not directory.is_dir() and not directory.is_absolute() and _HUB_NAME.fullmatch(model):
        raise ModelError(
            f"policy.model = {model!r} is a name of the Hugging Face hub, not a folder",
            remedy=f"download it (hf download {model} --local-dir models/{directory.name}) and "
            "name the folder in policy.model; to plan, its config.json suffices (known without "
            f"it: {', '.join(known_names())})",
        )
    use = folder_use(config.trainer)
    shape = read_shape(directory, use)
    if use is FolderUse.ANY_MODEL:
        sizes = "the usual parts of a layer" if is_estimate(read_config(directory)) else "its sizes"
        notes.append(
            f"the memory of the engine 'fsdp' is an estimate, from {sizes} and what a layer of "
            "Megatron-core keeps for its backward pass; it was compared with ranks on a CPU alone"
        )
    if shape.max_context is not None and config.policy.max_context > shape.max_context:
        raise ModelError(
            f"policy.max_context = {config.policy.max_context}, the model {directory} was made for "
            f"{shape.max_context} tokens",
            remedy=f"set policy.max_context to {shape.max_context} or less",
        )
    if not notes and not has_weights(directory):
        notes.append(f"{directory} has no weights: planned from its config.json alone")
    return shape, notes


def as_json(planned: Planned) -> dict[str, Any]:
    """Bytes and tokens are whole numbers; nothing is rounded."""
    plan = planned.plan
    trainer = plan.config.trainer
    time, assumed = plan.time, asdict(plan.assumed)
    source = assumed.pop("source")
    return {
        "campaign": plan.config.name,
        "model": {
            "path": plan.config.policy.model,
            **asdict(plan.shape),
            "num_parameters": plan.shape.num_parameters,
        },
        "trainer": {
            "engine": trainer.engine_name,
            "device": trainer.device.value,
            "dtype": trainer.dtype.value,
            "num_ranks": trainer.world_size,
            "largest_micro_batch": asdict(plan.micro_batch),
            "num_micro_batches": plan.num_micro_batches,
        },
        "ranks": [
            {
                "kind": rank.kind.name,
                "num_ranks": rank.kind.num_ranks,
                "num_layers": rank.kind.num_layers,
                "num_parameters": rank.kind.num_parameters,
                "peak_moment": rank.peak.name.value,
                "peak_bytes": rank.peak.num_bytes,
                "moments": {
                    moment.name.value: {
                        part.value: num_bytes for part, num_bytes in moment.bytes_of.items()
                    }
                    for moment in rank.moments
                },
            }
            for rank in plan.ranks
        ],
        "host": asdict(plan.host) | {"peak_bytes": plan.host.peak_bytes},
        "demand": asdict(plan.demand) | {"disk_bytes": plan.demand.disk_bytes},
        "step": {
            "seconds": {stage.value: seconds for stage, seconds in time.seconds_of.items()},
            "total_s": time.total_s,
            "flops": round(time.flops),
            "bubble": time.bubble,
            "overlaps": time.overlaps,
            "bottleneck": time.bottleneck.value,
        },
        "assumptions": {
            name: {"value": value, "source": source[name]}
            for name, value in assumed.items()
            if name in source
        },
        "gpu_memory_bytes": planned.gpu_bytes,
        "lacks_bytes": plan.lacks_bytes(planned.gpu_bytes) if planned.gpu_bytes else None,
        "fits": planned.fits if planned.gpu_bytes else None,
        "changes": [
            {
                "trainer": change.fields,
                "peak_bytes": change.peak_bytes,
                "num_ranks": change.num_ranks,
            }
            for change in planned.changes
        ],
        "notes": planned.notes,
    }
