"""Write docs/campaign.md and docs/supervised-file.md from mainspring/config:
`python docs/make_campaign_reference.py`.

Fields, defaults and bounds come from the models, meanings from the docstrings under the fields, so
the page cannot differ from the program; a test compares.
"""

import ast
import inspect
import types
import typing
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from mainspring.config.campaign import CampaignConfig
from mainspring.config.evaluations.evaluation import RunSection
from mainspring.config.section import Counts
from mainspring.config.sft import SftFile

PAGE = Path(__file__).parent / "campaign.md"
SFT_PAGE = Path(__file__).parent / "supervised-file.md"

T = TypeVar("T")

_OPTIONAL = "Optional: without this section it does not happen."
_NAMED_BY = {
    **{"agents": "NAME", "environments": "NAME", "judges": "NAME", "prices": "MODEL"},
    "evaluation.sampling": "SPLIT",
}
"""Word for the name of each table of a section that has several."""
_SYMBOLS = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}
_SYMBOLS |= {"min_length": "length >=", "max_length": "length <="}
_INTRO = """\
# The campaign file

<!-- Written by docs/make_campaign_reference.py from mainspring/config. -->

A campaign is one TOML file; `mainspring campaign start FILE` checks it, stores it and starts the
run. Unknown keys are refused.

The smallest file trains the bundled model on the bundled tasks:

```toml
name = "first"

[trainer]
device = "cpu"          # "cuda" unless set

[trainer.warm_start]    # the bundled model begins with random weights
```

A model of your own, served by two engines, larger steps, a smaller learning rate:

```toml
name = "qwen-bundled"
seed = 7

[policy]
model = "/models/Qwen3-8B"
engines = ["http://gpu-1:30000", "http://gpu-2:30000"]

[trainer]
num_steps = 400
groups_per_step = 16

[trainer.optimizer]
lr = 5e-7
```

## What may change later

What a campaign *is* never changes once it is stored: its seed, model, tasks, agents, group size. A
campaign with other values of these needs another name. What it *runs with* may change, while it
runs, is stopped or has finished:

<!-- not run: the campaign is yours -->
```sh
mainspring campaign set NAME trainer.num_steps=400 trainer.optimizer.lr=5e-7
mainspring campaign set NAME 'policy.engines=["http://gpu-3:30000"]' --yes
mainspring train campaign.toml      # a file that was changed since: shows the difference and asks
```

The column "change" below tells how a change of a field counts:

- **steps**: from the first step that is not planned yet, or from `--from-step`.
- **rollouts**: for rollouts under a policy version that has none yet, and for the step after it.
- **at once**: no weights follow from it.
- Empty: the field never changes.

Each change is stored with who made it, when, and the step that it counts from: `campaign show`, the
report and the fingerprint have them. A finished campaign that gets more steps is started again. A
reproducible campaign stays one: its weights follow from its file and from its changes and their
steps; `trainer.groups_per_step` and `trainer.max_staleness`, which number its groups, stay. A file
that still has the old value of a changed field does not take the change back.

## Several files, and values from the command line

A file may extend others, which count from its folder. Tables are merged, and everything else (a
list, too) is replaced whole:

```toml
extends = "base.toml"    # or a list: the last one wins
name = "small-steps"

[trainer]
groups_per_step = 4
```

`--set FIELD=VALUE` sets a field for one command, and a variable `MAINSPRING__SECTION__FIELD` for
all commands of a shell: `train`, `campaign start`, `campaign plan`, `sft` and `eval run` take both.
The command line wins over variables, these over the file, the file over those that it extends:

<!-- not run: the file is yours -->
```sh
mainspring campaign plan campaign.toml --set trainer.optimizer.lr=1e-6 --set agent.kind=tools
mainspring train campaign.toml --set 'agent.tools=["bash", "submit"]' --set reward.parts.0.weight=2
MAINSPRING__TRAINER__NUM_STEPS=20 mainspring train campaign.toml --dump
```

A value is written as in TOML; a word needs no quotes. A number names an entry of a list, from 0.
`--dump` prints every field with its value and where that comes from, and starts nothing; what it
prints is a file again.
"""


_SFT_INTRO = """\
# The file of a supervised run

<!-- Written by docs/make_campaign_reference.py from mainspring/config. -->

`mainspring sft FILE` reads one TOML file. Unknown keys are refused. What was stored stays: a run
that is started again under the same name must have the same configuration.
[supervised.md](supervised.md) explains the run; [examples/sft](../examples/sft/README.md) has a
file that runs on a CPU.

```toml
name = "warm"

[policy]
model = "/models/Qwen3-8B"

[[data.sources]]
campaign = "teacher"    # its resolved rollouts, as they were served

[[data.sources]]
file = "chats.jsonl"

[trainer]
num_epochs = 2
batch_size = 64
```
"""


def sft_page() -> str:
    return "\n".join([_SFT_INTRO, *_sections("", "Top level", SftFile, mark=None)])


def page() -> str:
    of_evaluations = _sections("run", "`[run]`", RunSection, mark=None)
    return "\n".join([_INTRO, *_sections("", "Top level", CampaignConfig), *of_evaluations])


def _sections(
    path: str, title: str, model: type[BaseModel], note: str = "", mark: str | None = ""
) -> Iterator[str]:
    """`mark`: how a change of any of its fields counts; None: of a run that is never changed."""
    bases = [base for base in reversed(model.__mro__) if issubclass(base, BaseModel)]
    meanings = {
        name: text
        for base in bases
        if base is not BaseModel
        for name, text in docstrings(base).items()
    }
    rows, nested, enums, as_that = [], [], [], []
    for name, field in model.model_fields.items():
        if field.exclude:
            continue  # given by the command
        meaning, inside = meanings.get(name, ""), f"{path}.{name}".lstrip(".")
        if section := _of_type(field.annotation, BaseModel):
            optional = _OPTIONAL * (field.default is None)
            inherited = None if mark is None else mark or _mark(field)
            nested.append((inside, f"`[{inside}]`", section, optional, inherited))
            continue
        if entry := _of_type(_element(field.annotation), BaseModel):
            unset = "" if field.is_required() else f"; unset: `{_toml(field.get_default())}`"
            about = f"{meaning} One such table for each{unset}."
            # Of a section that may be a list as well, the list has the section's name.
            listed = path if (field.alias or "").startswith("<") else inside
            nested.append((listed, f"`[[{listed}]]`", entry, about, mark))
            continue
        if entry := _of_type(_value(field.annotation), BaseModel):
            of_one = f"{inside}.{_NAMED_BY[inside]}"
            if any(other.annotation is entry for other in model.model_fields.values()):
                as_that.append(f"## `[{of_one}]`\n\n{meaning}\n")  # its table is there already
                continue
            about = f"{meaning} One such table for each {_NAMED_BY[inside]} that needs it.".lstrip()
            nested.append((of_one, f"`[{of_one}]`", entry, about, mark))
            continue
        if entry := _of_type(_beside_text(_value(field.annotation)), BaseModel):
            of_one = f"{inside}.{_NAMED_BY[inside]}"  # its row has the values that are text
            nested.append((of_one, f"`[{of_one}]`", entry, "", mark))
        if words := _of_type(field.annotation, StrEnum):
            enums.append((name, "is one of", words))
        elif words := _of_type(_element(field.annotation), StrEnum):
            enums.append((name, "holds any of", words))
        cells = (
            f"`{name}`",
            _type(field.annotation),
            "required" if field.is_required() else _default(field),
            _bounds(field),
            *(() if mark is None else (mark or _mark(field),)),
            meaning,
        )
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    if rows:
        yield f"## {title}\n"
        if "__doc__" in vars(model) and model.__doc__:
            yield inspect.cleandoc(model.__doc__) + "\n"
        if note:
            yield f"{note}\n"
        change = ("change",) * (mark is not None)
        heads = ("field", "type", "default", "bounds", *change, "meaning")
        yield f"| {' | '.join(heads)} |"
        yield "|---" * len(heads) + "|"
        yield "\n".join(rows) + "\n"
    for name, verb, words in enums:
        meanings = docstrings(words)
        yield f"`{name}` {verb}:\n"
        yield "\n".join(f'- `"{word}"`: {meanings.get(word.name, "")}' for word in words) + "\n"
    for inside in nested:
        yield from _sections(*inside)
    yield from as_that


def docstrings(cls: type) -> dict[str, str]:
    """Text of the string under each field or member."""
    (body,) = ast.parse(inspect.cleandoc("\n" + inspect.getsource(cls))).body
    assert isinstance(body, ast.ClassDef)
    meanings = {}
    for field, text in zip(body.body, body.body[1:], strict=False):
        match field, text:
            case (
                ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]),
                ast.Expr(value=ast.Constant(value=str(meaning))),
            ):
                meanings[name] = " ".join(meaning.split())
    return meanings


def _of_type(annotation: object, base: type[T]) -> type[T] | None:
    """The class under `base` that an annotation names, alone or beside None."""
    choices = typing.get_args(annotation) if _is_union(annotation) else (annotation,)
    for choice in choices:
        if isinstance(choice, type) and not typing.get_args(choice) and issubclass(choice, base):
            return choice
    return None


def _is_union(annotation: object) -> bool:
    return isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union


def _element(annotation: object) -> object:
    """Type of a list's items, where it has any length; None for everything else."""
    arguments = typing.get_args(annotation)
    of_any_length = typing.get_origin(annotation) is tuple and arguments[-1] is Ellipsis
    return arguments[0] if of_any_length else None


def _value(annotation: object) -> object:
    """Type of a table's values; None where it is no table."""
    is_table = typing.get_origin(annotation) is dict
    return typing.get_args(annotation)[1] if is_table else None


def _beside_text(annotation: object) -> object:
    """The section's type, of values that are text or a section; None for other types."""
    inside = typing.get_args(annotation)
    choices = [typing.get_args(choice) for choice in typing.get_args(inside[0])] if inside else []
    is_either = len(choices) == 2 and choices[0][:1] == (str,)
    return choices[1][0] if is_either else None


def _type(annotation: object) -> str:
    names = {int: "integer", float: "number", str: "string", bool: "boolean"}
    if isinstance(annotation, type) and annotation in names:
        return names[annotation]
    if _of_type(annotation, StrEnum):
        return "word"
    arguments = typing.get_args(annotation)
    if element := _element(annotation):
        return f"list of {_type(element)}s"
    if typing.get_origin(annotation) is tuple:
        return f"{len(arguments)} {names[arguments[0]]}s"
    if typing.get_origin(annotation) is dict:
        value_type = arguments[1]
        return f"table of {names[value_type]}s" if value_type in names else "table"
    if typing.get_origin(annotation) is typing.Annotated:
        return _type(arguments[0])
    if _is_union(annotation):
        return _type(next(argument for argument in arguments if argument is not type(None)))
    raise TypeError(f"no name for {annotation!r}: give it one here")


def _bounds(field: FieldInfo) -> str:
    bounds = []
    for constraint in field.metadata:
        for name, symbol in _SYMBOLS.items():
            if (value := getattr(constraint, name, None)) is not None:
                bounds.append(
                    f"{symbol} {value:g}" if abs(value) < 1e6 else f"{symbol} {value:,.0f}"
                )
    return ", ".join(bounds)


def _mark(field: FieldInfo) -> str:
    return next((each.value for each in field.metadata if isinstance(each, Counts)), "")


def _default(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True)
    return "unset" if value is None else f"`{_toml(value)}`"


def _toml(value: object) -> str:
    match value:
        case StrEnum():
            return f'"{value.value}"'
        case bool():
            return str(value).lower()
        case str():
            return f'"{value}"'
        case tuple():
            return "[" + ", ".join(_toml(item) for item in value) + "]"
        case BaseModel():
            return _toml({name: getattr(value, name) for name in value.model_fields_set})
        case dict():
            inside = ", ".join(f"{name} = {_toml(item)}" for name, item in value.items())
            return f"{{ {inside} }}" if inside else "{}"
        case float() if value < 1e-3 and value:
            return f"{value:.0e}".replace("e-0", "e-")
    return str(value)


if __name__ == "__main__":
    PAGE.write_text(page())
    SFT_PAGE.write_text(sft_page())
    print(PAGE, SFT_PAGE)
