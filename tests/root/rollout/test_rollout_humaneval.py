"""HumanEval on a real node: the oracle passes, the broken agent does not, an interrupted run gives everything back."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.needs("root", "linux", "erofs", "overlay", "aether", "mmdebstrap")

TASKS = 12


def _command(environment: dict[str, str], *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "dsec", *arguments],
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _dsec(environment: dict[str, str], *arguments: str) -> tuple[int, Any]:
    with _command(environment, *arguments, "--json") as process:
        out, err = process.communicate(timeout=110)
    assert out, err
    return process.returncode, json.loads(out)


def _live(environment: dict[str, str]) -> list[str]:
    _, sandboxes = _dsec(environment, "ls")
    return [info["id"] for info in sandboxes if "rollout" in info["spec"]["labels"]]


@pytest.mark.parametrize(("agent", "passed"), [("oracle", TASKS), ("broken", 0)])
def test_the_oracle_passes_and_the_broken_agent_fails(
    node_environment: dict[str, str], tmp_path: Path, agent: str, passed: int
) -> None:
    where = str(tmp_path / "report")
    code, told = _dsec(
        node_environment, "rollout", "run", "humaneval", "--agent", agent, "--tasks", str(TASKS), "--report", where
    )
    totals = told["totals"]
    assert (totals["passed"], totals["failed"]) == (passed, TASKS - passed)
    assert (totals["errors"], totals["not_run"], totals["left_behind"]) == (0, 0, 0)
    assert code == 0
    ids = [outcome["sandbox"] for outcome in told["report"]["outcomes"]]
    assert len(set(ids)) == TASKS
    assert _live(node_environment) == []
    code, shown = _dsec(node_environment, "rollout", "show", where)
    assert (code, shown) == (0, told)
    assert "HumanEval/11" in (tmp_path / "report" / "report.html").read_text()


def test_a_command_answers_and_its_program_is_judged_in_the_sandbox(
    node_environment: dict[str, str], tmp_path: Path
) -> None:
    model = tmp_path / "model"
    answer = "    import os\\n    print(os.uname().nodename, flush=True)\\n    os._exit(0)\\n"
    model.write_text(f"#!/bin/sh\ncat >/dev/null\nprintf '{answer}'\n")
    model.chmod(0o755)
    _, told = _dsec(node_environment, "rollout", "run", "humaneval", "--agent", f"command:{model}", "--tasks", "2")
    for outcome in told["report"]["outcomes"]:
        assert (outcome["result"], outcome["how"]) == ("failed", "exit code 0")
        assert outcome["stdout"].strip() not in ("", os.uname().nodename)


def test_an_answer_that_never_ends_is_a_failed_task(node_environment: dict[str, str], tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.write_text("#!/bin/sh\ncat >/dev/null\necho '    while True: pass'\n")
    model.chmod(0o755)
    arguments = ("--agent", f"command:{model}", "--tasks", "1", "--timeout", "500ms")
    code, told = _dsec(node_environment, "rollout", "run", "humaneval", *arguments)
    (outcome,) = told["report"]["outcomes"]
    assert (code, outcome["result"], outcome["how"]) == (0, "failed", "timeout")


def test_an_interrupted_run_reports_and_gives_back_every_sandbox(
    node_environment: dict[str, str], tmp_path: Path
) -> None:
    model = tmp_path / "model"
    model.write_text(f"#!/bin/sh\ncat >/dev/null\necho >> {tmp_path}/asked\nexec sleep 600\n")
    model.chmod(0o755)
    arguments = ("--agent", f"command:{model}", "--parallel", "4", "--json", "--report", str(tmp_path / "report"))
    with _command(node_environment, "rollout", "run", "humaneval", *arguments) as process:
        asked, deadline = tmp_path / "asked", time.monotonic() + 60
        while not (asked.exists() and asked.stat().st_size >= 4):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    told = json.loads(out)
    assert told["totals"]["not_run"] == 164
    assert told["report"]["interrupted"]
    assert (tmp_path / "report" / "report.html").exists()
    assert _live(node_environment) == []


def test_a_missing_image_is_an_error_that_says_how_to_make_it(node_environment: dict[str, str]) -> None:
    code, told = _dsec(node_environment, "rollout", "run", "humaneval", "--image", "nothing:here")
    assert code == 66
    assert told["error"]["code"] == "image_not_found"
    assert "dsec image build nothing:here" in told["error"]["details"]["remedy"]
