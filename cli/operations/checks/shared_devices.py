"""Whether an engine can share devices with the trainer's ranks, before a campaign depends on it."""

from infra.policy.engines.dialects.choice import dialect_of
from infra.policy.engines.wire import Wire
from mainspring.config.campaign import CampaignConfig
from mainspring.config.settings import Settings
from mainspring.errors import EngineError

TIMEOUT_S = 60.0
"""vLLM's first answer about itself takes some 10 s on a busy machine."""


async def not_lending(config: CampaignConfig, url: str, settings: Settings) -> EngineError | None:
    """Why the engine at `url`, which answers, cannot give its memory away; None: it can, or it does
    not need to."""
    if not config.trainer.colocate:
        return None
    dialect = dialect_of(config.policy.api)
    wire = Wire(TIMEOUT_S, settings.policy_api_key.get_secret_value(), dialect)
    try:
        await dialect.memory.is_lent(wire, url)
    except EngineError as error:
        return error
    finally:
        await wire.aclose()
    return None
