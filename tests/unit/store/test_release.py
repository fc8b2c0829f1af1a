"""What mmdebstrap is asked for, and what its failures become."""

import os
from pathlib import Path

import pytest

from dsec.store import release
from dsec.store.apt import AptSource
from libdsec.protocol.errors import CapacityError, InvalidArgumentError, UnavailableError

SOURCE = AptSource(("http://mirror.example/debian",), ("bookworm",), ("main",))


def test_packages_are_asked_for_once(tmp_path: Path) -> None:
    command = release._command("bookworm", [SOURCE], ["git", "python3", "git"], str(tmp_path))
    assert "--include=git,python3" in command
    assert "--variant=minbase" in command
    assert command[-3:-1] == ["bookworm", "-"]
    assert Path(command[-1]).read_text() == SOURCE.stanza()


def test_an_image_of_an_https_mirror_can_reach_it_again(tmp_path: Path) -> None:
    source = AptSource(("https://mirror.example/debian",), ("bookworm",), ("main",))
    assert "--include=ca-certificates" in release._command("bookworm", [source], [], str(tmp_path))
    other = tmp_path / "other"
    other.mkdir()
    assert not [a for a in release._command("bookworm", [SOURCE], [], str(other)) if a.startswith("--include")]


def test_a_key_of_the_host_s_own_goes_into_the_image_without_passing_a_shell(tmp_path: Path) -> None:
    key = "/etc/apt/keyrings/own'; touch x; '.gpg"
    source = AptSource(("http://mirror.example",), ("bookworm",), ("main",), {"signed-by": key})
    command = release._command("bookworm", [source, source], [], str(tmp_path))
    hooks = [argument for argument in command if argument.startswith("--setup-hook")]
    assert len(hooks) == 1
    assert key not in hooks[0]
    assert os.readlink(tmp_path / "key0") == key


@pytest.mark.parametrize("name", ["", "-x", "Bookworm", "a b", "../x", "a" * 100, "x\n"])
def test_what_is_no_release_name_never_reaches_a_command(name: str) -> None:
    with pytest.raises(InvalidArgumentError, match="release"):
        release._check(name, [])


@pytest.mark.parametrize("name", ["", "-oX", "a,b", "A", "x y", "?essential", "~i", "g"])
def test_what_is_no_package_name_never_reaches_a_command(name: str) -> None:
    with pytest.raises(InvalidArgumentError, match="package"):
        release._check("bookworm", ["git", name])


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("E: Unable to locate package nosuch", InvalidArgumentError),
        ("E: The repository 'x nosuch Release' does not have a Release file.", InvalidArgumentError),
        ("E: write error: No space left on device", CapacityError),
        ("E: Could not connect to mirror.example:80", UnavailableError),
        ("", UnavailableError),
    ],
)
def test_a_failure_has_its_kind_and_what_was_said(said: str, kind: type[Exception]) -> None:
    error = release._error("bookworm", 25, f"I: running apt-get update...\n{said}\nE: mmdebstrap failed to run")
    assert type(error) is kind
    assert said in str(error)
    assert error.details["status"] == 25


def test_the_time_of_a_build_is_the_day_s_or_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)
    assert release._epoch() % 86400 == 0
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "12345")
    assert release._epoch() == 12345
