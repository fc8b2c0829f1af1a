"""Stages as steps: what variables come to, what a configuration becomes, and what a key depends on."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import pytest

from dsec.dockerfile.parse import parse
from dsec.dockerfile.plan import (
    DEFAULT_SHELL,
    CopyStep,
    MakeStep,
    Planned,
    RunStep,
    base_of,
    check_arguments,
    needed_stages,
    plan_stage,
    step_key,
)
from dsec.dockerfile.run import local_name
from libdsec.protocol.environment import ImageConfig
from libdsec.protocol.errors import InvalidArgumentError

BASE = ImageConfig(
    {"PATH": "/bin", "BASE": "b"}, "/home", "base", ("/entry",), ("argument",), {"a": "1"}, ("22/tcp",), "SIGINT"
)


def planned(text: str, arguments: Mapping[str, str] | None = None, base: ImageConfig = BASE) -> Planned:
    file = parse(text)
    return plan_stage(file, file.stages[-1], base, DEFAULT_SHELL, arguments or {})[0]


def only_run(text: str, arguments: Mapping[str, str] | None = None) -> RunStep:
    (step,) = planned(text, arguments).steps
    assert isinstance(step, RunStep)
    return step


def only_copy(text: str) -> CopyStep:
    (step,) = planned(text).steps
    assert isinstance(step, CopyStep)
    return step


def test_a_command_has_the_variables_of_its_place() -> None:
    step = only_run('FROM b:1\nARG V=1\nENV PATH=$PATH:/x A="$V $BASE" V2=${V}\nUSER 7:8\nWORKDIR x/../y\nRUN echo $A')
    assert step.argv == ("/bin/sh", "-c", "echo $A")
    assert step.env == {"PATH": "/bin:/x", "BASE": "b", "V": "1", "A": "1 b", "V2": "1"}
    assert (step.user, step.cwd, step.directories) == ("7:8", "/home/y", ("/home/y",))


def test_values_of_one_instruction_are_those_before_it() -> None:
    assert only_run("FROM b:1\nENV A=1\nENV A=2 B=$A\nRUN x").env["B"] == "1"


def test_arguments() -> None:
    text = "ARG G=g\nARG H\nFROM b:1\nARG G\nARG H\nARG D=d$G\nARG N\nRUN x"
    assert {"G": "g", "D": "dg"}.items() <= only_run(text).env.items()
    assert not {"H", "N"} & only_run(text).env.keys()
    given = only_run(text, {"G": "1", "H": "2", "N": "3"}).env
    assert {"G": "1", "H": "2", "D": "d1", "N": "3"}.items() <= given.items()
    # without an ARG in the stage it is not there, and an ENV wins
    assert "G" not in only_run("ARG G=g\nFROM b:1\nRUN x").env
    assert only_run("FROM b:1\nENV A=env\nARG A=arg\nRUN x", {"A": "given"}).env["A"] == "env"


def test_an_argument_that_nothing_asks_for_is_refused() -> None:
    file = parse("ARG A\nFROM b:1\nARG B=1")
    check_arguments(file, {"A": "1", "B": "2", "HTTPS_PROXY": "x"})
    with pytest.raises(InvalidArgumentError, match="'C'"):
        check_arguments(file, {"C": "1"})


def test_the_configuration() -> None:
    config = planned('FROM b:1\nLABEL b="2 $BASE"\nEXPOSE 80 53/udp\nCMD run it\nENV A=1\nWORKDIR /w\nUSER u').config
    assert config == ImageConfig(
        {"PATH": "/bin", "BASE": "b", "A": "1"},
        "/w",
        "u",
        ("/entry",),
        ("/bin/sh", "-c", "run it"),
        {"a": "1", "b": "2 b"},
        ("22/tcp", "53/udp", "80/tcp"),
        "SIGINT",
    )


def test_a_new_entrypoint_forgets_the_arguments_of_the_old_one() -> None:
    assert planned('FROM b:1\nENTRYPOINT ["/new"]').config.cmd == ()
    config = planned('FROM b:1\nCMD ["own"]\nSHELL ["/bin/bash", "-c"]\nENTRYPOINT new').config
    assert (config.cmd, config.entrypoint) == (("own",), ("/bin/bash", "-c", "new"))


def test_only_what_changes_files_is_a_step() -> None:
    assert planned("FROM b:1\nENV A=1\nUSER x\nCMD y\nEXPOSE 1\nLABEL a=b\nARG Z").steps == ()
    (step,) = planned("FROM b:1\nWORKDIR /a\nWORKDIR b\nUSER x").steps
    assert isinstance(step, MakeStep)
    assert step.directories == ("/a", "/a/b")


@pytest.mark.parametrize(
    ("words", "sources", "target"),
    [
        ("a b", ("a",), "/home/b"),
        ("a b/", ("a",), "/home/b/"),
        ("a .", ("a",), "/home/"),
        ("a /", ("a",), "/"),
        ("a b ./", ("a", "b"), "/home/"),
        ("'a b' /x", ("a b",), "/x"),
        ('["a b", "$BASE/"]', ("a b",), "/home/b/"),
        ("""["a'b", "/x"]""", ("a'b",), "/x"),
        ("$BASE //x/../y", ("b",), "/y"),
    ],
)
def test_where_a_copy_goes(words: str, sources: tuple[str, ...], target: str) -> None:
    step = only_copy(f"FROM b:1\nCOPY {words}")
    assert (step.sources, step.target) == (sources, target)


def test_where_a_copy_is_from() -> None:
    text = "FROM b:1 AS one\nFROM b:1 AS two\nCOPY --from={} --chown=$BASE:1 /a /b"
    steps = [only_copy(text.replace("{}", name)) for name in ("one", "0", "x:1", "two")]
    assert [(step.stage, step.image) for step in steps] == [(0, None), (0, None), (None, "x:1"), (None, "two")]
    assert only_copy(text.replace("{}", "one")).owner == "b:1"


@pytest.mark.parametrize(
    "line",
    ["COPY a b c", "COPY $NOTHING b", "USER a b", "USER $NOTHING", "EXPOSE http", "WORKDIR $NOTHING", "ENV A=${B:?x}"],
)
def test_what_comes_to_nothing_is_refused(line: str) -> None:
    with pytest.raises(InvalidArgumentError) as error:
        planned(f"FROM b:1\n{line}")
    assert error.value.details["line"] == 2


def test_stages_that_are_needed() -> None:
    text = (
        "ARG B=a\nFROM b:1 AS a\nFROM b:1 AS x\nFROM $B AS c\nCOPY --from=0 /a /a\nFROM b:1 AS d\nCOPY --from=c /a /a"
    )
    file = parse(text)
    assert [stage.name for stage in needed_stages(file, None, {})] == ["a", "c", "d"]
    assert [stage.name for stage in needed_stages(file, "x", {})] == ["x"]
    assert [stage.name for stage in needed_stages(file, None, {"B": "x"})] == ["a", "x", "c", "d"]
    assert base_of(file, file.stages[2], {"B": "c:9"}) == "c:9"
    with pytest.raises(InvalidArgumentError, match="there are a, x, c, d"):
        needed_stages(file, "y", {})
    with pytest.raises(InvalidArgumentError, match="comes to nothing"):
        needed_stages(file, "c", {"B": ""})


def test_a_key_is_of_what_makes_a_difference() -> None:
    step = only_run("FROM b:1\nARG A=1\nRUN x")
    key = step_key(["sha256:1"], step, "", "private")
    proxied = only_run("FROM b:1\nARG A=1\nRUN x", {"http_proxy": "somewhere"})
    assert proxied.env["http_proxy"] == "somewhere"
    same = [proxied, msgspec.structs.replace(step, line=99, text="RUN   x")]
    assert {step_key(["sha256:1"], each, "", "private") for each in same} == {key}
    others = [
        step_key(["sha256:2"], step, "", "private"),
        step_key(["sha256:1"], step, "", "host"),
        step_key(["sha256:1"], step, "other files", "private"),
        *(
            step_key(["sha256:1"], msgspec.structs.replace(step, **changed), "", "private")
            for changed in ({"argv": ("y",)}, {"env": {}}, {"cwd": "/x"}, {"user": "u"}, {"directories": ("/d",)})
        ),
        step_key(["sha256:1"], MakeStep(1, "", ()), "", "private"),
    ]
    assert len({key, *others}) == len(others) + 1


@pytest.mark.parametrize(
    ("name", "local"),
    [
        ("localhost:5000/a/b:1", "localhost-5000/a/b:1"),
        ("registry.example/a:v1", "registry.example/a:v1"),
        ("127.0.0.1:5000/a@sha256:" + "a" * 64, "127.0.0.1-5000/a:sha256-" + "a" * 64),
    ],
)
def test_what_an_image_of_a_registry_is_called_here(name: str, local: str) -> None:
    assert local_name(name, 1) == local


@pytest.mark.parametrize("name", ["localhost:5000/a", "h.example/A:1", "h.example/:1"])
def test_what_no_image_of_a_registry_can_be_called(name: str) -> None:
    with pytest.raises(InvalidArgumentError):
        local_name(name, 3)
