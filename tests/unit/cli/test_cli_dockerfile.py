"""`dsec image build -f`: what of its options goes together, and what is read of files, before anything is asked for."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace

import pytest

from dsec.cli.image_dockerfile import Shown
from dsec.dockerfile.run import News


@pytest.mark.parametrize(
    "options",
    [
        ("-f", "Dockerfile", "--from", "dir:/x"),
        ("-f", "Dockerfile", "--package", "git"),
        ("-f", "Dockerfile", "--env", "A=b"),
        ("-f", "Dockerfile", "--kind", "toolkit"),
        ("--build-arg", "A=b"),
        ("--target", "stage"),
        ("--network", "host"),
        ("--no-cache",),
        ("--progress", "quiet"),
        ("--timeout", "5m"),
    ],
)
def test_options_of_one_way_to_build_are_refused_with_the_other(node, options: tuple[str, ...]) -> None:
    result = node.run("image", "build", "app:1", *options)
    assert result.exit_code == 2
    assert "Dockerfile" in result.stderr or "-f" in result.stderr


@pytest.mark.parametrize(
    ("content", "options", "why"),
    [
        (b"FROM a:1\n# \xff\n", (), "line 2 is no UTF-8"),
        (b"FROM a:1\nRUN --mount=type=bind,target=/x true\n", (), "line 2 of the Dockerfile: RUN --mount"),
        (b"FROM a:1\n", ("--build-arg", "A"), "NAME=VALUE"),
        (b"FROM a:1\n", ("--build-arg", "A=1"), "no ARG asks for"),
        (b"FROM a:1\n", ("--target", "x"), "no stage 'x'"),
        (b"x" * (1024 * 1024 + 1), (), "more than"),
        (b"x" * (1024 * 1024) + "é".encode(), (), "more than"),
    ],
)
def test_what_cannot_be_built_is_told_in_one_line(
    node, tmp_path: Path, content: bytes, options: tuple[str, ...], why: str
) -> None:
    (tmp_path / "Dockerfile").write_bytes(content)
    result = node.run("image", "build", "app:1", str(tmp_path), *options)
    assert result.exit_code == 64
    assert why in result.stderr


def test_names_and_files_that_are_missing(node, tmp_path: Path) -> None:
    assert "cannot read" in node.run("image", "build", "app:1", str(tmp_path)).stderr
    (tmp_path / "Dockerfile").write_text("FROM a:1\n")
    assert "NAME:TAG" in node.run("image", "build", "-f", str(tmp_path / "Dockerfile")).stderr
    assert "--progress" in node.run("image", "build", "app:1", str(tmp_path), "--progress", "loud").stderr
    assert "--network" in node.run("image", "build", "app:1", str(tmp_path), "--network", "bridge").stderr


def shown(monkeypatch: pytest.MonkeyPatch, terminal: bool, *printed: bytes) -> bytes:
    """What is on standard error of steps that print this, after each another step."""
    sink = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
    monkeypatch.setattr("dsec.cli.image_dockerfile.sys", SimpleNamespace(stderr=sink))
    show = Shown(terminal)
    for data in printed:
        show(News("output", "0", 2, data=data))
    show(News("step", "0", 3, "RUN true"))
    return sink.buffer.getvalue()  # type: ignore[attr-defined]


def test_a_step_cannot_tell_the_terminal_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    hostile = b"\x1b]0;title\x07\x1b[2J\x1b[31m\xc2\x9b1A\x08\x0e\xffred\r\n\tend\n"
    said = shown(monkeypatch, True, hostile).decode()
    assert said.endswith("red\r\n\tend\n[0:3] RUN true\n")
    assert all(each.isprintable() or each in "\r\n\t" for each in said)
    assert shown(monkeypatch, False, hostile).startswith(hostile)  # a file has what the step has written


def test_what_a_step_prints_is_told_from_the_next_step(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown(monkeypatch, True, b"no end") == b"no end\n[0:3] RUN true\n"
    assert shown(monkeypatch, True, "ü".encode()[:1], "ü\n".encode()[1:]) == "ü\n[0:3] RUN true\n".encode()
