"""Real programs as tasks: a release is the repository, the next one's tests are hidden.

The difference between the two is the gold patch: it resolves the task, and without it nothing does.
Made when the tests run, of what the package index has; skipped where there is none.
"""

import asyncio
import io
import subprocess
import sys
import tarfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import docker
import pytest
from sandbox_backend import IMAGE, build_image, cleared, make_backend

from infra.environments.grader import Judged, for_grading, judge
from infra.sandbox.protocol import Limits, SandboxBackend, SandboxSpec
from mainspring.ids import SandboxId, TaskId
from mainspring.status import Verdict
from mainspring.tasks.criterion import ExitCode, Judge, TestLog
from mainspring.tasks.patches import is_test
from mainspring.tasks.sandbox_choice import DOCKER
from mainspring.tasks.swe_task import SweTask

LIBRARY = "/tests/lib"
OF_PYTEST = ("pytest", "_pytest", "pluggy", "iniconfig", "packaging")
OF_PROGRAMS = "mainspring-programs"
DOWNLOAD_TIMEOUT_S = 300


@dataclass(frozen=True, slots=True)
class Program:
    old: str
    new: str
    source: tuple[str, ...]
    """Files and folders that are the program."""
    tests: tuple[str, ...]
    """Files, in both."""
    judge: Judge
    helpers: tuple[str, ...] = ()
    """What the tests import."""


def by_pytest(fail_to_pass: tuple[str, ...], pass_to_pass: tuple[str, ...]) -> TestLog:
    return TestLog(parser="parse_log_pytest", fail_to_pass=fail_to_pass, pass_to_pass=pass_to_pass)


def by_unittest(fail_to_pass: tuple[str, ...], pass_to_pass: tuple[str, ...]) -> TestLog:
    """Django's tests print what unittest prints."""
    names = (
        tuple(f"{name.rpartition('.')[2]} ({name})" for name in names)
        for names in (fail_to_pass, pass_to_pass)
    )
    return TestLog(parser="parse_log_django", fail_to_pass=next(names), pass_to_pass=next(names))


PROGRAMS = {
    "xmltodict": Program(
        "0.12.0",
        "0.13.0",
        ("xmltodict.py",),
        ("tests/test_xmltodict.py", "tests/test_dicttoxml.py"),
        by_pytest(
            (
                "tests/test_dicttoxml.py::DictToXMLTestCase::test_list_expand_iter",
                "tests/test_xmltodict.py::XMLToDictTestCase::test_comments",
                "tests/test_xmltodict.py::XMLToDictTestCase::test_namespace_collapse_all",
                "tests/test_xmltodict.py::XMLToDictTestCase::test_streaming_generator",
            ),
            ("tests/test_dicttoxml.py::DictToXMLTestCase::test_attrib",),
        ),
    ),
    "toolz": Program(
        "0.11.1",
        "0.12.0",
        ("toolz", "tlz"),
        ("toolz/tests/test_curried.py", "toolz/tests/test_tlz.py"),
        by_pytest(
            (
                "toolz/tests/test_curried.py::test_curried_operator",
                "toolz/tests/test_tlz.py::test_tlz",
            ),
            ("toolz/tests/test_curried.py::test_take",),
        ),
    ),
    "rfc3986": Program(
        "1.4.0",
        "1.5.0",
        ("src",),
        ("tests/test_builder.py",),
        by_pytest(
            (
                "tests/test_builder.py::test_extend_path[-users-/users]",
                "tests/test_builder.py::test_extend_path[https://api.github.com-users-/users]",
            ),
            ("tests/test_builder.py::test_add_host[goOgLE.com-google.com]",),
        ),
    ),
    "pyasn1": Program(
        "0.4.7",
        "0.4.8",
        ("pyasn1",),
        ("tests/type/test_constraint.py",),
        by_pytest(
            (
                "tests/type/test_constraint.py::SingleValueConstraintTestCase::testContains",
                "tests/type/test_constraint.py::PermittedAlphabetConstraintTestCase::testAdd",
            ),
            ("tests/type/test_constraint.py::SingleValueConstraintTestCase::testCmp",),
        ),
        helpers=("tests/__init__.py", "tests/base.py", "tests/type/__init__.py"),
    ),
    "cachetools": Program(
        "5.2.1",
        "5.3.0",
        ("src",),
        ("tests/test_cached.py",),
        by_unittest(
            (
                "tests.test_cached.CacheWrapperTest.test_decorator_info",
                "tests.test_cached.CacheWrapperTest.test_zero_size_cache_decorator_info",
                "tests.test_cached.DictWrapperTest.test_decorator_info",
                "tests.test_cached.NoneWrapperTest.test_decorator_info",
            ),
            ("tests.test_cached.CacheWrapperTest.test_decorator",),
        ),
        helpers=("tests/__init__.py",),
    ),
    "pyflakes": Program(
        "2.2.0",
        "2.3.0",
        ("pyflakes",),
        ("pyflakes/test/test_type_annotations.py",),
        ExitCode(),
        helpers=("pyflakes/test/__init__.py", "pyflakes/test/harness.py"),
    ),
    "uritemplate": Program(
        "3.0.1", "4.1.1", ("uritemplate",), ("tests/test_uritemplate.py",), ExitCode()
    ),
}


def library() -> dict[str, str]:
    """pytest and all it needs, as hidden files: sandboxes have a bare Python."""
    site = Path(pytest.__file__).parents[1]
    found = {path for name in OF_PYTEST for path in (site / name).rglob("*.py")}
    found |= {*site.glob("pluggy-*.dist-info/METADATA")}  # it asks for its own version
    for name, module in sys.modules.items():
        if name.partition(".")[0] in ("py", "pygments") and getattr(module, "__file__", None):
            found.add(Path(str(module.__file__)))  # the rest of pygments would be megabytes
    return {f"{LIBRARY}/{path.relative_to(site)}": path.read_text() for path in sorted(found)}


def command(judge: Judge, tests: tuple[str, ...]) -> str:
    if isinstance(judge, TestLog) and judge.parser == "parse_log_pytest":
        run = f"pytest -rA -p no:cacheprovider -c /dev/null --rootdir . {' '.join(tests)}"
    else:
        run = "unittest -v " + " ".join(
            test.removesuffix(".py").replace("/", ".") for test in tests
        )
    return (
        f"export PYTHONPATH={LIBRARY}:src:.\necho '>>>>> Start Test Output'\npython3 -m {run}\n"
        "code=$?\necho '>>>>> End Test Output'\necho \">>>>> Test Exit Code: $code\"\nexit $code\n"
    )


def make_task(name: str, old: Path, new: Path) -> SweTask:
    program = PROGRAMS[name]
    before, after = (
        {path: text for path, text in read(release, program.source).items() if not is_test(path)}
        for release in (old, new)
    )
    tests = read(new, (*program.tests, *program.helpers))
    return SweTask(
        id=TaskId(name),
        source="programs",
        split="test",
        issue=f"Make of {name} {program.old} what {program.new} is.",
        workdir=f"/programs/{name}",
        files=before,
        tests=tests | library(),
        test_command=command(program.judge, program.tests),
        test_timeout_s=120,
        judge=program.judge,
        gold_patch=difference(before, after, old.parent / "difference"),
    )


def read(release: Path, places: tuple[str, ...]) -> dict[str, str]:
    """All files at or below `places`."""
    tops = [release / place for place in places]
    found = [path for top in tops for path in (top, *sorted(top.rglob("*.py"))) if path.is_file()]
    assert all(top.exists() for top in tops), (release, places)
    return {str(path.relative_to(release)): path.read_text() for path in found}


def difference(before: dict[str, str], after: dict[str, str], folder: Path) -> str:
    def git(*arguments: str) -> str:
        identity = ("-c", "user.name=a", "-c", "user.email=b", "-c", "core.autocrlf=false")
        return subprocess.run(
            ["git", *identity, *arguments], cwd=folder, check=True, stdout=subprocess.PIPE
        ).stdout.decode()

    folder.mkdir()
    git("init", "-q")
    for release in (before, after):
        git("rm", "-rfq", "--ignore-unmatch", ".")
        for path, text in release.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(text.encode())
        git("add", "-A")
        if release is before:
            git("commit", "-qm", "before")
    return git("diff", "--cached", "--binary", "HEAD")


async def download(releases: list[str], folder: Path) -> list[Path]:
    """Unpacked, in the order asked for. Skips where the index cannot be reached."""
    pip = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:"),
        *(
            "--no-build-isolation",
            "--retries",
            "1",
            "--timeout",
            "15",
            "--dest",
            str(folder),
            *releases,
        ),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    async with asyncio.timeout(DOWNLOAD_TIMEOUT_S):
        said, _ = await pip.communicate()
    if pip.returncode != 0:
        pytest.skip(f"releases cannot be downloaded: {said.decode()[-300:]}")
    unpacked = []
    for release in releases:
        name = release.replace("==", "-")
        [archive] = folder.glob(f"{name}.*")
        with tarfile.open(archive) as opened:
            opened.extractall(folder / "unpacked" / name, filter="data")
        unpacked.append(folder / "unpacked" / name / name)
    return unpacked


@pytest.fixture(scope="module")
async def tasks(tmp_path_factory) -> dict[str, SweTask]:
    both = await asyncio.gather(
        *(
            download(releases, tmp_path_factory.mktemp("releases"))
            for releases in (
                [f"{name}=={program.old}" for name, program in PROGRAMS.items()],
                [f"{name}=={program.new}" for name, program in PROGRAMS.items()],
            )
        )
    )
    pairs = zip(PROGRAMS, *both, strict=True)
    return {name: make_task(name, old, new) for name, old, new in pairs}


def add_programs(tasks: dict[str, SweTask]) -> None:
    """One image with all of them, each in a repository of its own."""
    commit = "git init -q && git add -A && git -c user.name=a -c user.email=b commit -qm base"
    recipe = f"FROM {IMAGE}\nCOPY programs /programs\n"
    recipe += f"RUN for folder in /programs/*; do cd $folder && {commit} || exit; done\n"
    files = {
        f"programs/{name}/{path}": text
        for name, task in tasks.items()
        for path, text in task.files.items()
    }
    context = io.BytesIO()
    with tarfile.open(fileobj=context, mode="w") as archive:
        for path, text in {"Dockerfile": recipe, **files}.items():
            member = tarfile.TarInfo(path)
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))
    context.seek(0)
    client = docker.from_env(timeout=60)
    client.images.build(
        fileobj=context, custom_context=True, tag=OF_PROGRAMS, network_mode="none", rm=True
    )
    client.close()


@pytest.fixture(scope="module", params=["bwrap", pytest.param("docker", marks=pytest.mark.docker)])
async def backend(request, tasks, tmp_path_factory) -> AsyncIterator[SandboxBackend]:
    if request.param == DOCKER:
        build_image()
        add_programs(tasks)
    backend = make_backend(request.param, tmp_path_factory.mktemp("programs"))
    async with cleared(backend):
        yield backend


async def grade(backend: SandboxBackend, task: SweTask, patch: str) -> Judged:
    in_image = backend.name == DOCKER
    spec = SandboxSpec(
        SandboxId(f"{task.id} {len(patch)}"),
        task.workdir,
        image=OF_PROGRAMS if in_image else None,
        files={} if in_image else task.files,
        limits=Limits(memory_mb=512),
    )
    sandbox = await backend.open(for_grading(spec, task))
    try:
        return await judge(sandbox, task, patch.encode(), run_empty=True)
    finally:
        await sandbox.close()


@pytest.mark.parametrize("name", PROGRAMS)
async def test_the_next_release_resolves_and_nothing_does_not(backend, tasks, name):
    task = tasks[name]
    if isinstance(task.judge, TestLog):
        pytest.importorskip("swebench", reason="the swe extra is not installed")
    gold, empty = await asyncio.gather(
        *(grade(backend, task, patch) for patch in (task.gold_patch, ""))
    )
    assert gold.verdict is Verdict.RESOLVED, gold
    assert empty.verdict is Verdict.NOT_RESOLVED, empty
    assert gold.report.returncode == 0 != empty.report.returncode
    assert not gold.report.dropped_paths
    if isinstance(task.judge, TestLog):
        assert gold.report.fail_to_pass_passed == task.judge.fail_to_pass, gold
        assert empty.report.fail_to_pass_failed == task.judge.fail_to_pass, empty
        assert empty.report.pass_to_pass_passed == task.judge.pass_to_pass, empty
