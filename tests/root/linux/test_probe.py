"""The doctor's trials: they run, they agree with the machine, they leave nothing."""

import os
from pathlib import Path

import pytest

from dsec.linux.probe import findings
from dsec.linux.probe.verdict import Degraded, Trial, judge

pytestmark = pytest.mark.needs("root")


def _cgroups() -> set[str]:
    return {str(path) for path in Path("/sys/fs/cgroup").glob("*/dsec-probe*")} | {
        str(path) for path in Path("/sys/fs/cgroup").glob("dsec-probe*")
    }


@pytest.mark.needs("erofs", "overlay")
def test_every_trial_has_a_verdict_and_nothing_stays(disk: Path, nothing_left: None) -> None:
    before = _cgroups()
    found = {finding.name: finding for finding in findings(str(disk))}
    assert os.listdir(disk) == []
    assert _cgroups() <= before
    for name in ("kernel", "namespaces", "user-namespaces", "seccomp", "overlay-idmapped"):
        assert found[name].verdict == "ok", found[name]
    for finding in found.values():
        assert finding.detail
        assert (finding.remedy is None) == (finding.verdict == "ok"), finding


def test_a_state_directory_that_is_not_there_yet_is_not_made(disk: Path, nothing_left: None) -> None:
    assert findings(str(disk / "a" / "b"))
    assert os.listdir(disk) == []


def test_a_trial_that_breaks_is_a_finding() -> None:
    def broken(_: str) -> str:
        raise ZeroDivisionError

    def poor(_: str) -> str:
        raise Degraded("works badly", "do this")

    missing = judge(Trial("x", broken, "missing", "fix it"), "/")
    assert (missing.verdict, missing.detail, missing.remedy) == ("missing", "ZeroDivisionError", "fix it")
    degraded = judge(Trial("x", poor, "missing", "fix it"), "/")
    assert (degraded.verdict, degraded.detail, degraded.remedy) == ("degraded", "works badly", "do this")
