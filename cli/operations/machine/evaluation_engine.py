"""The engine that an evaluation starts for itself (`run.serve`), and what is checked before.

Invariants: a folder that cannot be served is refused before anything is stored or started; the
engine is a process of the command's fleet, so it ends with the command, however that ends; what
answers at its address already is never taken for it. Imported by what starts an evaluation.
"""

from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from cli.operations.machine import local_engines
from cli.operations.machine.fleet import Member
from cli.operations.machine.local_engines import EngineKind, Hardware, this_machine
from infra.policy.model.model_files import check_servable, read_facts
from infra.policy.model.tokenizer import ChatTokenizer
from infra.stack import ports
from mainspring.config.campaign import CampaignConfig
from mainspring.config.evaluations.evaluation import EvaluationConfig
from mainspring.config.policy import PolicyConfig
from mainspring.config.settings import Settings
from mainspring.config.trainer import TrainerConfig
from mainspring.config.training.parallel import Device
from mainspring.errors import UsageError
from mainspring.model_folder.refusals import FolderUse


def check_served(policy: PolicyConfig) -> None:
    """Raises ModelError for a folder that is no model or lacks a tokenizer, and UsageError where no
    engine of this machine can serve it as it is asked for."""
    model, hardware = Path(policy.model), this_machine()
    is_sglang = _kind(policy, hardware) is EngineKind.SGLANG
    check_servable(model, FolderUse.READ if is_sglang else FolderUse.SERVED)
    ChatTokenizer(model, variables=policy.sampling.variables)
    own = read_facts(model).max_context
    if own is not None and policy.max_context > own:
        raise UsageError(
            f"policy.max_context = {policy.max_context}, and the model {model} was made for {own} "
            "tokens",
            remedy=f"set policy.max_context to {own} or less",
        )
    num_bytes = sum(file.stat().st_size for file in model.glob("*.safetensors"))
    if not is_sglang and num_bytes > local_engines.MAX_CPU_BYTES:
        why = "no GPU here" if not hardware.gpus else "SGLang is not installed in this environment"
        raise UsageError(
            f"{model} has {num_bytes / 1e9:.0f} GB, which is too large for the CPU engine ({why})",
            remedy=f"start SGLang from its own environment: mainspring serve --model {model} "
            "--engine sglang; then evaluate with --model and --base-url",
        )


def placed(config: EvaluationConfig, stored: EvaluationConfig | None) -> EvaluationConfig:
    """With a port for its engine where it asks for a free one (port 0): that of the stored run of
    its name, else a new one."""
    [url] = config.policy.engines
    if urlsplit(url).port != 0:
        return config
    parts = urlsplit(url)
    new = urlunsplit(parts._replace(netloc=f"{parts.hostname}:{ports.pick()}"))
    engines = (new,) if stored is None else stored.policy.engines
    return config.model_copy(
        update={"policy": config.policy.model_copy(update={"engines": engines})}
    )


async def require_free(config: EvaluationConfig) -> None:
    """Raises UsageError where something answers at the engine's address."""
    if taken := await local_engines.answering(config.policy.engines):
        raise UsageError(
            f"{next(iter(taken))} answers already: the engine of {config.name} is started there",
            remedy="another command may be playing it: follow it with `mainspring campaign watch "
            f"{config.name}`; otherwise end what listens there",
        )


def engine_member(settings: Settings, config: EvaluationConfig) -> Member:
    [member] = local_engines.engine_members(
        settings, _as_campaign(config.policy, config.name), config.policy.engines, this_machine()
    )
    return member


def in_words(config: EvaluationConfig) -> str:
    """The engine that is started, and where."""
    kind = _kind(config.policy, this_machine())
    name = "SGLang on this machine's GPUs" if kind is EngineKind.SGLANG else "the CPU engine"
    return f"{name} serves {config.policy.model} at {config.policy.engines[0]} for this run"


def _kind(policy: PolicyConfig, hardware: Hardware) -> EngineKind:
    return local_engines.kind_for(_as_campaign(policy, "served"), hardware)


def _as_campaign(policy: PolicyConfig, name: str) -> CampaignConfig:
    """How a campaign's model is served which leaves every GPU to its engines. Not checked as one:
    nothing is trained."""
    return CampaignConfig.model_construct(
        name=name, policy=policy, trainer=TrainerConfig(device=Device.CPU)
    )
