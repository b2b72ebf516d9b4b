"""The functions generated modules are made of, as data: what each returns, its code, its tests.

Invariants: every name of HELDOUT_TEMPLATES is absent from TRAIN_TEMPLATES; no function has a blank
line inside (edits address it as "from its def to the next blank line"); no code can loop for
ever under any edit of mainspring.bundled.bugs. Only mainspring.bundled imports it.

Placeholders: {fn} the function, {num} and {other} its numbers, {items} a list, {out} a local.
"""

from dataclasses import dataclass

PLACEHOLDERS: dict[str, tuple[str, ...]] = {
    "num": ("n", "k", "num", "limit", "top", "width", "low"),
    "other": ("m", "high", "cap", "other", "height", "upper"),
    "items": ("items", "data", "values", "xs", "nums"),
    "out": ("total", "acc", "out", "res", "value", "best"),
}
"""What each placeholder may become; disjoint, so no two names of one function collide."""


@dataclass(frozen=True, slots=True)
class Case:
    """One hidden assertion: function(*args) == expected."""

    args: tuple[object, ...]
    expected: object


@dataclass(frozen=True, slots=True)
class FunctionTemplate:
    name: str
    description: str
    """Completes the sentence "it should return ..."."""
    code: str
    cases: tuple[Case, ...]


TRAIN_TEMPLATES: tuple[FunctionTemplate, ...] = (
    FunctionTemplate(
        "sum_to",
        "the sum of the numbers from 1 to {num}",
        """\
def {fn}({num}):
    {out} = 0
    for i in range(1, {num} + 1):
        {out} += i
    return {out}
""",
        (Case((4,), 10), Case((1,), 1), Case((7,), 28)),
    ),
    FunctionTemplate(
        "product_to",
        "the product of the numbers from 1 to {num}",
        """\
def {fn}({num}):
    {out} = 1
    for i in range(1, {num} + 1):
        {out} *= i
    return {out}
""",
        (Case((4,), 24), Case((1,), 1), Case((5,), 120)),
    ),
    FunctionTemplate(
        "count_above",
        "how many of {items} are above {num}",
        """\
def {fn}({items}, {num}):
    {out} = 0
    for x in {items}:
        if x > {num}:
            {out} += 1
    return {out}
""",
        (Case(([1, 5, 3, 3], 3), 1), Case(([4, 4, 9], 1), 3), Case(([], 2), 0)),
    ),
    FunctionTemplate(
        "largest",
        "the largest of {items}",
        """\
def {fn}({items}):
    {out} = {items}[0]
    for x in {items}:
        if x > {out}:
            {out} = x
    return {out}
""",
        (Case(([1, 5, 3],), 5), Case(([-4, -9],), -4), Case(([2, 2],), 2)),
    ),
    FunctionTemplate(
        "clamp",
        "{num} limited to the range 0 to {other}",
        """\
def {fn}({num}, {other}):
    if {num} < 0:
        return 0
    return min({num}, {other})
""",
        (Case((5, 3), 3), Case((-2, 9), 0), Case((4, 9), 4), Case((0, 1), 0)),
    ),
    FunctionTemplate(
        "plus",
        "{num} plus {other}, but at least 0",
        """\
def {fn}({num}, {other}):
    {out} = {num} + {other}
    return max({out}, 0)
""",
        (Case((5, 3), 8), Case((2, 9), 11), Case((2, -3), 0)),
    ),
    FunctionTemplate(
        "times_plus",
        "{num} times {other} plus 2",
        """\
def {fn}({num}, {other}):
    {out} = {num} * {other}
    return {out} + 2
""",
        (Case((5, 3), 17), Case((2, 9), 20)),
    ),
    FunctionTemplate(
        "last",
        "the last of {items}, or None",
        """\
def {fn}({items}):
    if len({items}) == 0:
        return None
    return {items}[-1]
""",
        (Case(([1, 2, 3],), 3), Case(([],), None)),
    ),
    FunctionTemplate(
        "count_missing",
        "how many of {items} are not in {other}",
        """\
def {fn}({items}, {other}):
    {out} = 0
    for x in {items}:
        if x not in {other}:
            {out} += 1
    return {out}
""",
        (Case(([1, 2, 3], [2]), 2), Case(([1], [1]), 0), Case(([], [1]), 0)),
    ),
    FunctionTemplate(
        "between",
        "whether {num} lies from 1 to {other}",
        """\
def {fn}({num}, {other}):
    return {num} >= 1 and {num} <= {other}
""",
        (Case((1, 3), True), Case((3, 3), True), Case((4, 3), False), Case((0, 3), False)),
    ),
    FunctionTemplate(
        "middle",
        "the middle between {num} and {other}",
        """\
def {fn}({num}, {other}):
    {out} = {num} + {other}
    return {out} / 2
""",
        (Case((2, 4), 3), Case((9, 0), 4.5), Case((3, 7), 5)),
    ),
    FunctionTemplate(
        "distance",
        "how far {num} is from {other}",
        """\
def {fn}({num}, {other}):
    if {num} < {other}:
        return {other} - {num}
    return {num} - {other}
""",
        (Case((5, 3), 2), Case((2, 9), 7), Case((4, 4), 0)),
    ),
    FunctionTemplate(
        "outside",
        "whether {num} is below 0 or above {other}",
        """\
def {fn}({num}, {other}):
    return {num} < 0 or {num} > {other}
""",
        (Case((0, 3), False), Case((3, 3), False), Case((4, 3), True), Case((-1, 3), True)),
    ),
    FunctionTemplate(
        "total",
        "the total of {items}",
        """\
def {fn}({items}):
    {out} = 0
    for x in {items}:
        {out} += x
    return {out}
""",
        (Case(([1, 5, 3],), 9), Case(([],), 0), Case(([2],), 2)),
    ),
)

HELDOUT_TEMPLATES: tuple[FunctionTemplate, ...] = (
    FunctionTemplate(
        "count_equal",
        "how many of {items} are equal to {num}",
        """\
def {fn}({items}, {num}):
    {out} = 0
    for x in {items}:
        if x == {num}:
            {out} += 1
    return {out}
""",
        (Case(([1, 3, 3], 3), 2), Case(([4], 1), 0), Case(([], 2), 0)),
    ),
    FunctionTemplate(
        "product",
        "the product of {items}",
        """\
def {fn}({items}):
    {out} = 1
    for x in {items}:
        {out} *= x
    return {out}
""",
        (Case(([2, 5, 3],), 30), Case(([],), 1), Case(([7],), 7)),
    ),
    FunctionTemplate(
        "spread",
        "the largest minus the smallest of {items}",
        """\
def {fn}({items}):
    return max({items}) - min({items})
""",
        (Case(([1, 5, 3],), 4), Case(([-4, -9],), 5), Case(([2],), 0)),
    ),
    FunctionTemplate(
        "perimeter",
        "the perimeter of {num} by {other}",
        """\
def {fn}({num}, {other}):
    {out} = {num} + {other}
    return {out} * 2
""",
        (Case((5, 3), 16), Case((2, 9), 22)),
    ),
    FunctionTemplate(
        "larger_plus",
        "the larger of {num} and {other} plus 1",
        """\
def {fn}({num}, {other}):
    {out} = max({num}, {other})
    return {out} + 1
""",
        (Case((5, 3), 6), Case((2, 9), 10), Case((4, 4), 5)),
    ),
    FunctionTemplate(
        "both_positive",
        "whether {num} and {other} are both above 0",
        """\
def {fn}({num}, {other}):
    return {num} > 0 and {other} > 0
""",
        (Case((1, 2), True), Case((0, 2), False), Case((1, -1), False), Case((0, 0), False)),
    ),
)
