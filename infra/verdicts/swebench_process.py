"""The process that has imported the official SWE-bench library and answers `swebench.py`.

One line of JSON asks, one line answers. It ends when its parent does, and by an alarm when
a parser takes too long: the kernel ends it in the middle of a pattern, where Python itself cannot.
Run as a module with that timeout in seconds; it is not imported.
"""

import json
import os
import signal
import sys
from typing import Any

import swebench
from swebench.harness.grading import get_eval_report
from swebench.harness.log_parsers import PARSER_REGISTRY
from swebench.types import TestSpec

from infra.verdicts.swebench import LogVerdict
from mainspring.tasks.criterion import GradeReport, TestLog


def answer(question: dict[str, Any], timeout_s: int) -> dict[str, Any]:
    if not question:
        return {"version": swebench.__version__, "parsers": sorted(PARSER_REGISTRY)}
    signal.alarm(timeout_s)
    try:
        judge = TestLog.model_validate_json(question["judge"])
        return judge_file(question["task"], judge, question["file"]).model_dump(mode="json")
    finally:
        signal.alarm(0)


def judge_file(task: str, judge: TestLog, file: str) -> LogVerdict:
    spec = TestSpec(
        instance_id=task,
        image="",
        eval_script_list=[],
        repo=judge.repo,
        version=judge.version,
        FAIL_TO_PASS=list(judge.fail_to_pass),
        PASS_TO_PASS=list(judge.pass_to_pass),
        log_parser=judge.parser,
        eval_type=judge.eval_type,
    )
    prediction = {"instance_id": task, "model_name_or_path": "", "model_patch": ""}
    try:
        result = get_eval_report(spec, prediction, file, include_tests_status=True)[task]
    except Exception as error:  # a parser meets whatever a program printed
        return LogVerdict(report=GradeReport(note=f"the log parser failed: {error!r}"))
    status = result.get("tests_status")
    if status is None:
        reason = result.get("infra_failure_reason", "")
        note = f"no test results in the log{f' ({reason})' if reason else ''}"
        broken = reason if result["infra_failure"] else ""
        return LogVerdict(report=GradeReport(note=note), broken=broken)
    fail_to_pass, pass_to_pass = status["FAIL_TO_PASS"], status["PASS_TO_PASS"]
    report = GradeReport(
        fail_to_pass_passed=tuple(fail_to_pass["success"]),
        fail_to_pass_failed=tuple(fail_to_pass["failure"]),
        pass_to_pass_passed=tuple(pass_to_pass["success"]),
        pass_to_pass_failed=tuple(pass_to_pass["failure"]),
    )
    return LogVerdict(resolved=result["resolved"], report=report)


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the library prints is no answer
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a person's Ctrl-C is for the one who asks
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line), int(sys.argv[1]))), file=answers, flush=True)


if __name__ == "__main__":
    main()
