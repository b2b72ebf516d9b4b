"""What is made of rows that bring no eval script: the table's facts, and a script that is run."""

import subprocess
from pathlib import Path

import pytest
from source_rows import SKLEARN, SWE_ROWS, read, tasks_of

from infra.sources.image_rules import ImageFamily
from infra.sources.kinds.log_parsers import check_parser
from infra.sources.kinds.specs import Labels, Spec, _table, eval_script, spec_for, with_exit_code
from infra.sources.patch_files import read_patch
from infra.sources.protocol import RowError
from mainspring.tasks.criterion import TestLog

PATCH = """\
diff --git a/tests/test_old.py b/tests/test_old.py
--- a/tests/test_old.py
+++ b/tests/test_old.py
@@ -1,2 +1,2 @@
 def test_it():
-    assert open("state").read() == "broken"
+    assert open("state").read() == "mended"
diff --git a/tests/test_new.py b/tests/test_new.py
new file mode 100644
--- /dev/null
+++ b/tests/test_new.py
@@ -0,0 +1,3 @@
+EOF = "EOF_1"
+def test_new():
+    pass
"""


def test_real_rows_become_tasks() -> None:
    moto, django, sklearn = tasks_of(read(SWE_ROWS))
    assert moto.image == "docker.io/xingyaoww/sweb.eval.x86_64.getmoto_s_moto-7365:latest"
    assert django.image == "docker.io/swebench/sweb.eval.x86_64.django_1776_django-10973:latest"
    assert "\npytest -n0 -rA tests/test_dynamodb/test_dynamodb_update_expressions.py\n" in (
        moto.test_command
    )
    assert "--parallel 1 dbshell.test_postgresql\n" in django.test_command
    assert "locale-gen" in django.test_command and "LANG" not in sklearn.test_command
    assert isinstance(sklearn.judge, TestLog)
    assert sklearn.judge.parser == "parse_log_scikit"
    assert sklearn.judge.fail_to_pass == tuple(SKLEARN["FAIL_TO_PASS"])
    assert len(sklearn.judge.pass_to_pass) == 2
    assert sklearn.gold_patch == SKLEARN["patch"] and sklearn.test_patch == ""
    assert sklearn.metadata["base_commit"] == SKLEARN["base_commit"]
    assert sklearn.workdir == "/testbed"
    for task in (moto, django, sklearn):
        subprocess.run(["bash", "-n"], input=task.test_command.encode(), check=True)


@pytest.mark.parametrize(
    ("repo", "version", "test", "install"),
    [
        ("django/django", "1.9", "./tests/runtests.py --verbosity 2", "python setup.py install"),
        ("django/django", "1.10", "--parallel 1", "python setup.py install"),
        ("django/django", "5.1", "--parallel 1", "python -m pip install -e ."),
        ("astropy/astropy", "v5.3", "pytest -rA", "python -m pip install -e .[test] --verbose"),
        ("astropy/astropy", "1.3", "--tb=no", "python -m pip install -e .[test] --verbose"),
        ("Project-MONAI/monai", "0.105", "pytest -rA", "setup.py develop"),
        ("dask/dask", "2022.8", "--color=no", "--no-deps"),
        ("python/mypy", "0.990", "pytest -n0 -rA", "pytest-xdist"),
        ("python/mypy", "1.10", "pytest -rA", "hash -r"),
    ],
)
def test_the_table_by_version(repo: str, version: str, test: str, install: str) -> None:
    spec = spec_for(repo, version)
    assert (spec.test.endswith(test) and spec.install.endswith(install)) or install in spec.install


def test_every_entry_of_the_table_can_be_used() -> None:
    table = _table()
    assert len(table) == 29
    for repo, entry in table.items():
        ends = [entry["versions"], *(each["versions"] for each in entry.get("except", ()))]
        for version in {version for pair in ends for version in pair}:
            check_parser(spec_for(repo, version).parser)
    for version in ("", "newest", "0.1"):
        with pytest.raises(RowError):
            spec_for("django/django", version)


def test_mypy_runs_the_cases_of_its_patch() -> None:
    patch = "diff --git a/t/a.test b/t/a.test\n--- a/t/a.test\n+++ b/t/a.test\n@@ -1 +1,2 @@\n"
    patch += " [case testOne]\n+[case testTwo-skip]\n"
    script = eval_script(spec_for("python/mypy", "1.9"), "c0ffee", patch, read_patch(patch))
    assert "\npytest -rA -k 'testOne or testTwo-skip'\n" in script


def test_a_script_as_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent spoiled both test files and mended the program."""
    monkeypatch.setenv("HOME", str(tmp_path))
    repo = tmp_path / "repo"
    (repo / "tests").mkdir(parents=True)
    (repo / "state").write_text("broken")
    old = 'def test_it():\n    assert open("state").read() == "broken"\n'
    (repo / "tests/test_old.py").write_text(old)
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b"]
    for arguments in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "base"]):
        subprocess.run([*git, *arguments], cwd=repo, check=True)
    shown = subprocess.run([*git, "rev-parse", "HEAD"], cwd=repo, check=True, capture_output=True)
    (repo / "state").write_text("mended")
    (repo / "tests/test_old.py").write_text("def test_it(): pass\n")
    (repo / "tests/test_new.py").write_text("def test_new(): pass\n")

    spec = Spec(
        ImageFamily.SWE_BENCH, "parse_log_pytest", "python -m pytest -rA -p no:cacheprovider"
    )
    script = eval_script(spec, shown.stdout.decode().strip(), PATCH, read_patch(PATCH))
    # Neither the image's environment nor its folder is here; the script goes on without them.
    run = subprocess.run(["bash", "-c", script], cwd=repo, capture_output=True, text=True)
    said = run.stdout
    assert "PASSED tests/test_old.py::test_it" in said and "2 passed" in said
    assert said.rstrip().endswith(">>>>> Test Exit Code: 0")
    started, ended = (run.stderr.index(f">>>>> {each} Test Output") for each in ("Start", "End"))
    assert started < ended
    assert (repo / "tests/test_old.py").read_text() == old
    assert not (repo / "tests/test_new.py").exists()


def test_the_exit_code_is_recorded_once() -> None:
    script = "run\n: '>>>>> End Test Output'\nrestore\n"
    once = with_exit_code(script)
    assert once.index("SWEBENCH_TEST_EXIT_CODE=$?") < once.index("End Test Output")
    assert once.index("End Test Output") < once.index(">>>>> Test Exit Code:")
    assert with_exit_code(once) == once
    assert with_exit_code("no marker") == "no marker"


def test_what_a_patch_touches() -> None:
    files = read_patch(
        "diff --git a/gone b/gone\ndeleted file mode 100644\n--- a/gone\n+++ /dev/null\n"
        "@@ -1 +0,0 @@\n--- a/not/a/header\n"
        "diff --git a/from b/to\nsimilarity index 100%\nrename from from\nrename to to\n"
        'diff --git "a/caf\\303\\251" "b/caf\\303\\251"\n@@ -1 +1 @@\n-a\n+diff --git a/x b/x\n'
        "diff --git a/run b/run\nold mode 100644\nnew mode 100755\n"
        "diff --git a/pic b/pic\nnew file mode 100644\nGIT binary patch\nliteral 3\nabc\n"
    )
    assert files.before == ("gone", "from", "caf\N{LATIN SMALL LETTER E WITH ACUTE}", "run")
    assert files.created == ("to", "pic")
    assert files.after == ("to", "caf\N{LATIN SMALL LETTER E WITH ACUTE}", "run", "pic")


def test_labels_are_words_of_the_table() -> None:
    assert spec_for("django/django", "4.0").labels is Labels.DOTTED
    assert spec_for("sympy/sympy", "1.8").labels is Labels.FILES
