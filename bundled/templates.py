"""The functions generated modules are made of, as data: what each returns, its code, its tests.

Invariants: every name of HELDOUT_TEMPLATES is absent from TRAIN_TEMPLATES; no function has a blank
line inside (edits address it as "from its def to the next blank line"); no code can loop for
ever under any edit of bundled.bugs. Only bundled imports it.

Placeholders: {fn} the function, {num} and {other} its numbers, {items} a list, {out} a local.
"""

from dataclasses import dataclass

PLACEHOLDERS: dict[str, tuple[str, ...]] = {
    "num": ("n", "k", "num", "limit", "top", "width", "low"),
    "other": ("m", "high", "cap", "other", "height", "upper"),
    "items": ("items", "data", "values", "xs", "nums"),
    "out": ("total", "acc", "out", "res", "value", "best"),
}
"""Names that each placeholder may become; disjoint, so no two names of one function collide."""


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
        "largest_plus",
        "the largest of {items} plus 1",
        """\
def {fn}({items}):
    {out} = {items}[0]
    for x in {items}:
        if x > {out}:
            {out} = x
    return {out} + 1
""",
        (
            Case(([1, 5, 3],), 6),
            Case(([-4, -9],), -3),
            Case(([2, 2],), 3),
        ),
    ),
    FunctionTemplate(
        "clamp_double",
        "twice {num} limited to the range 0 to {other}",
        """\
def {fn}({num}, {other}):
    if {num} < 0:
        return 0
    return min({num} * 2, {other})
""",
        (
            Case((5, 3), 3),
            Case((-2, 9), 0),
            Case((4, 9), 8),
            Case((0, 1), 0),
        ),
    ),
    FunctionTemplate(
        "double_plus",
        "twice {num} plus {other}, but at least 0",
        """\
def {fn}({num}, {other}):
    {out} = {num} * 2 + {other}
    return max({out}, 0)
""",
        (
            Case((5, 3), 13),
            Case((2, 9), 13),
            Case((2, -9), 0),
        ),
    ),
    FunctionTemplate(
        "times_plus",
        "{num} times {other} plus 2, or 0 below 0",
        """\
def {fn}({num}, {other}):
    if {num} < 0:
        return 0
    return {num} * {other} + 2
""",
        (
            Case((5, 3), 17),
            Case((2, 9), 20),
            Case((-1, 4), 0),
        ),
    ),
    FunctionTemplate(
        "ends",
        "the first plus the last of {items}, or 0",
        """\
def {fn}({items}):
    if len({items}) == 0:
        return 0
    return {items}[0] + {items}[-1]
""",
        (
            Case(([1, 2, 5],), 6),
            Case(([],), 0),
            Case(([7, 1],), 8),
        ),
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
        "the middle of {num} and {other}, but at least 1",
        """\
def {fn}({num}, {other}):
    {out} = {num} + {other}
    return max({out} / 2, 1)
""",
        (
            Case((2, 4), 3),
            Case((9, 0), 4.5),
            Case((3, 7), 5),
            Case((0, 0), 1),
        ),
    ),
    FunctionTemplate(
        "distance_plus",
        "how far {num} is from {other}, plus 1",
        """\
def {fn}({num}, {other}):
    if {num} < {other}:
        return {other} - {num} + 1
    return {num} - {other} + 1
""",
        (
            Case((5, 3), 3),
            Case((2, 9), 8),
            Case((4, 4), 1),
        ),
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
        "total_without",
        "the total of {items} without {num}",
        """\
def {fn}({items}, {num}):
    {out} = 0
    for x in {items}:
        if x != {num}:
            {out} += x
    return {out}
""",
        (
            Case(([1, 5, 3], 5), 4),
            Case(([], 1), 0),
            Case(([2, 6], 3), 8),
        ),
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
        "product_above",
        "the product of those of {items} above {num}",
        """\
def {fn}({items}, {num}):
    {out} = 1
    for x in {items}:
        if x > {num}:
            {out} *= x
    return {out}
""",
        (
            Case(([2, 5, 3], 2), 15),
            Case(([], 1), 1),
            Case(([7, 1], 1), 7),
        ),
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
        "the perimeter of {num} by {other}, but at least 4",
        """\
def {fn}({num}, {other}):
    {out} = {num} + {other}
    return max({out} * 2, 4)
""",
        (
            Case((5, 3), 16),
            Case((2, 9), 22),
            Case((1, 0), 4),
        ),
    ),
    FunctionTemplate(
        "larger_half",
        "half of the larger of {num} and {other} plus 1",
        """\
def {fn}({num}, {other}):
    {out} = max({num}, {other})
    return ({out} + 1) / 2
""",
        (
            Case((5, 3), 3),
            Case((2, 9), 5),
            Case((4, 4), 2.5),
        ),
    ),
    FunctionTemplate(
        "corner",
        "whether {num} is above 0 and {other} below 9",
        """\
def {fn}({num}, {other}):
    return {num} > 0 and {other} < 9
""",
        (
            Case((1, 2), True),
            Case((0, 2), False),
            Case((1, 9), False),
            Case((0, 9), False),
        ),
    ),
)
