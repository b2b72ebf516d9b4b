"""Facts about a running vLLM that decide whether it can be trained on, as /server_info tells them.

It is asked once a process of the engine: the first answer takes vLLM some seconds. Imported by the
dialect beside this file and by the check of engines.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra.policy.engines.dialects.protocol import Calls
from infra.policy.model.weight_files import has_output_layer
from infra.policy.protocol import UnfitEngine
from mainspring.errors import EngineError, EngineFailing, EngineUnreachable

PROCESSED = "processed_logprobs"
START = (
    "start it with `mainspring serve --engine vllm`, or with --enable-scale-out and "
    "VLLM_SERVER_DEV_MODE=1"
)
SLEEP_MODE = "--enable-sleep-mode"
INFO_PATH = "/server_info?config_format=json"


@dataclass(frozen=True, slots=True)
class VllmFacts:
    model_path: str
    device: str
    logprobs_mode: str
    context_length: int
    dtype: str | None = None
    """Precision that it computes in, as torch names it."""
    can_sleep: bool = False
    """Whether it can give its memory away."""

    @classmethod
    def of(cls, server_info: dict[str, Any]) -> "VllmFacts":
        """Raises KeyError, TypeError."""
        config = server_info["vllm_config"]
        model = config["model_config"]
        return cls(
            model_path=str(model["model"]),
            device=str(config["device_config"]["device"]),
            logprobs_mode=str(model["logprobs_mode"]),
            context_length=int(model["max_model_len"]),
            dtype=str(model["dtype"]).removeprefix("torch.") if "dtype" in model else None,
            can_sleep=model.get("enable_sleep_mode") is True,
        )

    def keeps_output_layer(self, model: Path) -> bool:
        """Whether a load of `model` leaves its old output layer. Raises ModelError."""
        return self.device == "cpu" and not has_output_layer(model)

    def raw_logprobs(self, temperature: float) -> str | None:
        """Why its log-probs are not those of what is sampled at `temperature`; None: they are."""
        if temperature == 1.0 or self.logprobs_mode == PROCESSED:
            return None
        return (
            f"its log-probs ({self.logprobs_mode}) are before the temperature, and "
            f"policy.temperature is {temperature}"
        )

    def check_sleeps(self, engine: str) -> None:
        """Raises UnfitEngine."""
        if not self.can_sleep:
            raise UnfitEngine(
                f"policy engine {engine} cannot give its memory to the trainer (trainer.colocate)",
                remedy=f"start vLLM with {SLEEP_MODE}, on a GPU",
            )

    def check_logprobs(self, engine: str, temperature: float) -> None:
        """Raises UnfitEngine."""
        if reason := self.raw_logprobs(temperature):
            raise UnfitEngine(
                f"policy engine {engine}: {reason}",
                remedy=f"start vLLM with --logprobs-mode {PROCESSED}, or set temperature = 1.0",
            )


def keeps_old_output(model: Path) -> str:
    return (
        "vLLM on a CPU keeps the old output layer of a model with tied embeddings when new weights "
        f"are loaded, and {model} is one"
    )


async def ask_facts(calls: Calls, engine: str) -> VllmFacts:
    """Raises UnfitEngine where it does not tell, EngineUnreachable, EngineFailing."""
    try:
        return VllmFacts.of(await calls.call(engine, "GET", INFO_PATH))
    except (EngineUnreachable, EngineFailing):
        raise
    except (EngineError, KeyError, TypeError, ValueError) as error:
        raise UnfitEngine(
            f"policy engine {engine} is no vLLM whose weights can be updated: {error}", remedy=START
        ) from error
