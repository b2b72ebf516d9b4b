"""Names that can be searched for: no public class has the name of another one."""

import ast
from collections import defaultdict

from tests.test_dependency_rule import PACKAGES, ROOT, sources, tree

TWICE = {
    "Place",  # of a world and of a row: extensions import both
}
"""May only shrink."""


def test_no_public_class_has_the_name_of_another() -> None:
    files = defaultdict[str, list[str]](list)
    for path in sources(*(package for package in PACKAGES if package != "migrations")):
        for node in tree(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                files[node.name].append(str(path.relative_to(ROOT)))
    twice = {name: where for name, where in files.items() if len(where) > 1}
    assert set(twice) == TWICE, twice
