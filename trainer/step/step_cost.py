"""Costs of a step on one rank: operations the model needs, the device's peak, and memory.

Invariants: measuring computes nothing about the batch's values, makes no collective and moves no
weight; what is not known (an architecture without a count, a GPU without a known peak, a CPU) is
None. Made by the rank.
"""

import re
from collections.abc import Sequence
from pathlib import Path

import torch

from mainspring.config.trainer import TrainerConfig
from mainspring.errors import ModelError
from mainspring.planning.engine_facts import bytes_per_value
from mainspring.planning.gpu_peaks import peak_tflops
from mainspring.planning.model_flops import model_flops
from mainspring.planning.model_shape import ModelShape, read_shape
from mainspring.trajectories.samples import Sample

GIB = 1 << 30
_PEAK_RESIDENT = re.compile(r"^VmHWM:\s+(\d+) kB", re.MULTILINE)


class StepCost:
    def __init__(self, trainer: TrainerConfig, model_dir: Path, device: torch.device) -> None:
        self._trainer = trainer
        self._device = device
        self._shape = _shape(model_dir)
        self.peak_flops = _peak_flops(trainer, device)
        """Operations a second of this rank's device."""

    def begin(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)

    def flops(self, samples: Sequence[Sample]) -> float | None:
        """Operations of all passes of a step over these samples, by all ranks."""
        if self._shape is None:
            return None
        num_wanted = sum(sample.num_action_tokens for sample in samples)
        lengths = [trained_tokens(sample) for sample in samples]
        return self._trainer.updates_per_step * model_flops(self._shape, lengths, num_wanted)

    def critic_flops(self, samples: Sequence[Sample]) -> float | None:
        """Likewise, of a critic: its layers in all passes, and forward for the values before."""
        if self._shape is None:
            return None
        pass_flops = model_flops(self._shape, [trained_tokens(sample) for sample in samples], 0)
        return (self._trainer.updates_per_step + 1 / 3) * pass_flops

    def num_trained_tokens(self, samples: Sequence[Sample]) -> int:
        return self._trainer.updates_per_step * sum(map(trained_tokens, samples))

    def memory_peak_gib(self) -> float | None:
        """Peak memory of a GPU since `begin`, of a process on a CPU since it was started."""
        if self._device.type == "cuda":
            return torch.cuda.max_memory_allocated(self._device) / GIB
        match = _PEAK_RESIDENT.search(Path("/proc/self/status").read_text())
        return int(match[1]) * 1024 / GIB if match else None


def trained_tokens(sample: Sample) -> int:
    """The model sees all but the last, which predicts nothing."""
    return len(sample.token_ids) - 1


def _shape(model_dir: Path) -> ModelShape | None:
    try:
        return read_shape(model_dir)
    except ModelError:  # an engine of your own may train what has no count here
        return None


def _peak_flops(trainer: TrainerConfig, device: torch.device) -> float | None:
    tflops = trainer.peak_tflops
    if tflops is None and device.type == "cuda":
        name = torch.cuda.get_device_name(device)
        tflops = peak_tflops(name, is_half=bytes_per_value(trainer) == 2)
    return None if tflops is None else tflops * 1e12
