"""Settings that colocation (`trainer.colocate`) cannot be given with: what must be served or sent
while ranks have the devices. Pure; imported by the table of pairs, and by what starts trainers."""

from urllib.parse import urlsplit

from mainspring.config.files.leftovers import Together
from mainspring.errors import ConfigError
from mainspring.status import PolicyApi, Publish

LOCAL_HOSTS = frozenset({"127.0.0.1", "localhost", "::1"})
_OR = "or remove trainer.colocate"


def not_colocated(config: Together) -> str:
    """The first setting that keeps ranks and engines from sharing devices, and what to set; empty:
    there is none, or they do not share."""
    policy = config.policy
    if not config.trainer.colocate:
        return ""
    if policy.api is PolicyApi.OPENAI:
        return (
            'trainer.colocate = true needs engines that give memory away, and policy.api = "openai"'
            f' is an endpoint: set "sglang" or "vllm", {_OR}'
        )
    if policy.publish is not Publish.DISK:
        return (
            f'trainer.colocate = true needs policy.publish = "disk", not "{policy.publish}": ranks '
            f"and engines never hold weights at the same time; set it, {_OR}"
        )
    if not policy.engines:
        return (
            'trainer.colocate = true needs the addresses of policy.engines, not "registered": '
            f"engines that join later may be on other hosts; list them, {_OR}"
        )
    for url in policy.engines:
        if urlsplit(url).hostname not in LOCAL_HOSTS:
            return (
                "trainer.colocate = true needs engines on the trainer's machine, and "
                f"policy.engines has {url}: start one here and give http://127.0.0.1:PORT, {_OR}"
            )
    for name, judge in config.judges.items():
        if shared := sorted({url.rstrip("/") for url in judge.engines} & set(policy.engines)):
            return (
                f"trainer.colocate = true: the judge {name} asks {shared[0]}, an engine of the "
                f"policy, which does not answer during a step; give it engines of its own, {_OR}"
            )
    return ""


def ranks_elsewhere(config: Together, ray_address: str) -> ConfigError | None:
    """Why the trainer's ranks may not be beside the engines that they share devices with."""
    if not (config.trainer.colocate and ray_address):
        return None
    return ConfigError(
        "trainer.colocate = true needs ranks on the engines' machine, and the Ray cluster at "
        f"{ray_address} may place them on others",
        remedy=f"unset MAINSPRING_RAY_ADDRESS: the trainer starts a Ray of its own; {_OR}",
    )
