"""Every extension point: what cannot be used is refused by name, in its table and in a campaign."""

import importlib
import sys
from typing import Any

import pytest

from cli.operations.checks.named_parts import check_named
from mainspring.config.campaign import CampaignConfig
from mainspring.config.registry import Registry
from mainspring.environments.choice import JUDGES
from mainspring.errors import ConfigError, UsageError
from mainspring.extensions import POINTS, ExtensionPoint
from mainspring.programs.harbor import HARBOR_AGENTS

NOWHERE = "nowhere_at_all:Thing"
NEEDS = {"correction": {"proximal": "recomputed"}, "engine": {"device": "cpu"}}
"""Fields of [trainer] that a point's own needs."""


def registry_of(point: ExtensionPoint) -> Registry[Any]:
    module, _, name = point.registry.partition(":")
    return getattr(importlib.import_module(module), name)


REGISTRIES = {point.what: registry_of(point) for point in POINTS} | {"grader": JUDGES}
SHAPED = [what for what in REGISTRIES if what != HARBOR_AGENTS.what]
"""Harbor's own class is looked at where Harbor is imported: tests/cli/test_harbor_checks.py."""
FIELDS = {
    point.what: point
    for point in POINTS
    if point.is_open and point.field is not None and point.what in SHAPED
}
ENTRIES = [(what, name) for what, registry in REGISTRIES.items() for name in registry]


class Nothing:
    """Is no function, and has no method."""


def with_table(registry: Registry[Any], *table: tuple[str, Any]) -> Registry[Any]:
    return Registry(
        registry.what,
        table,
        takes=registry.takes,
        methods=registry.methods,
        also=registry.also,
        require=registry.require,
    )


def campaign(point: ExtensionPoint, name: str) -> CampaignConfig:
    """One that has the name in the point's field."""
    assert point.field is not None
    trainer = {"device": "cpu", "warm_start": {}, **NEEDS.get(point.what, {})}
    given: dict[str, Any] = {"name": "own", "trainer": trainer, "agent": {}}
    if point.of_kind is not None:
        given["agent"]["kind"] = point.of_kind
    if point.field == "environments":
        given["environments"] = {"game": name}
    elif point.field == "judges.*.kind":
        given["judges"] = {"own": {"kind": name, "url": "http://judge:1/v1", "model": "m"}}
    elif point.field == "reward.parts.name":
        given["reward"] = {"parts": [{"name": name}]}
    else:
        *sections, last = point.field.split(".")
        inner = given
        for section in sections:
            inner = inner.setdefault(section, {})
        inner[last] = [name] if point.what == "tool" else name
    return CampaignConfig.model_validate(given)


def refused(point: ExtensionPoint, name: str) -> UsageError:
    with pytest.raises(UsageError, match=f"{name!r}") as error:
        check_named(campaign(point, name))
    assert error.value.remedy
    return error.value


@pytest.mark.parametrize(("what", "name"), ENTRIES)
def test_each_entry_can_be_used(what: str, name: str) -> None:
    registry = REGISTRIES[what]
    found = registry[name]
    assert registry.find(name) is found
    assert [other for other in registry if registry[other] is found] == [name]
    registry.check(name)


@pytest.mark.parametrize("what", REGISTRIES)
def test_two_of_one_name_are_refused(what: str) -> None:
    registry = REGISTRIES[what]
    once = ("mine", NOWHERE)
    with_table(registry, once)
    for name in ("mine", *registry.also):
        with pytest.raises(ConfigError, match=f"{registry.what} '{name}' is named twice"):
            with_table(registry, once, (name, "elsewhere:Thing"))
    with pytest.raises(ConfigError, match="is called like a path"):
        with_table(registry, (NOWHERE, NOWHERE))


@pytest.mark.parametrize(("what", "name"), ENTRIES)
def test_a_path_to_what_has_a_name_is_refused(
    what: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = REGISTRIES[what]
    monkeypatch.setattr(sys.modules[__name__], "same", registry[name], raising=False)
    with pytest.raises(ConfigError, match=f"'{__name__}:same' is called {name!r} here"):
        registry.check(f"{__name__}:same")
    if what in FIELDS:
        assert f"is called {name!r} here" in refused(FIELDS[what], f"{__name__}:same").message


@pytest.mark.parametrize("what", SHAPED)
def test_what_lacks_a_method_is_refused(what: str) -> None:
    registry = REGISTRIES[what]
    path = f"{__name__}:Nothing"
    says = (
        f"lacks {', '.join(registry.methods)}"
        if registry.methods
        else "lacks (launch|command)|expected a"
    )
    with pytest.raises(ConfigError, match=f"{registry.what} 'mine' .*({says})"):
        with_table(registry, ("mine", Nothing))
    with pytest.raises(ConfigError, match=f"{registry.what} 'mine' .*({says})"):
        with_table(registry, ("mine", path)).find("mine")
    with pytest.raises(ConfigError, match=f"{registry.what} {path!r} .*({says})"):
        registry.check(path)
    if what in FIELDS:
        refused(FIELDS[what], path)


@pytest.mark.parametrize("what", REGISTRIES)
def test_what_cannot_be_imported_is_refused(what: str) -> None:
    registry = REGISTRIES[what]
    for found, name in ((registry, NOWHERE), (with_table(registry, ("mine", NOWHERE)), "mine")):
        with pytest.raises(ConfigError, match=f"{name!r} cannot be imported: ModuleNotFound"):
            found.find(name)
    with pytest.raises(ConfigError, match=f"no {registry.what} is called 'absent'"):
        registry.check("absent")
    if what in FIELDS:
        assert "cannot be imported" in refused(FIELDS[what], NOWHERE).message
        refused(FIELDS[what], "absent")
