"""Dockerfiles as text: what is read, and what is refused with its line."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.dockerfile import words
from dsec.dockerfile.instructions import Arg, Cmd, Copy, Entrypoint, Env, Expose, Label, Run, Shell, User, Workdir
from dsec.dockerfile.lines import read_lines
from dsec.dockerfile.parse import parse
from libdsec.protocol.errors import InvalidArgumentError

WHOLE = """\
# syntax=docker/dockerfile:1.7
ARG VERSION=12

FROM debian:${VERSION} AS Builder
# a comment
RUN apt-get update \\
    # within a command
    && apt-get install -y gcc \\

    && true
run ["gcc", "--version"]
COPY --chown=1000:1000 src/*.c  [lib.c  /src/
ENV A=1 B="two words" C=three\\ words
ENV OLD  the rest of it
WORKDIR /src
USER builder
ARG NAME=x OTHER
CMD echo $A
ENTRYPOINT ["/bin/app", "a b"]
LABEL org.x="y z"
EXPOSE 80 8000-8010/udp
SHELL ["/bin/bash", "-c"]
FROM scratch
COPY --from=builder ["/a b", "/c/"]
ADD file /file"""


def test_every_instruction() -> None:
    file = parse(WHOLE)
    assert [arg.pairs for arg in file.arguments] == [(("VERSION", "12"),)]
    builder, last = file.stages
    assert (builder.name, builder.base.line, last.name, last.base.image) == ("builder", 4, "1", "scratch")
    run, exec_form, copy, env, old, workdir, user, arg, cmd, entrypoint, label, expose, shell = builder.instructions
    assert isinstance(run, Run)
    assert (run.line, run.words) == (6, None)
    assert run.command.split() == ["apt-get", "update", "&&", "apt-get", "install", "-y", "gcc", "&&", "true"]
    assert isinstance(exec_form, Run)
    assert (exec_form.line, exec_form.words) == (11, ("gcc", "--version"))
    assert isinstance(copy, Copy)
    assert (copy.sources, copy.target, copy.owner) == (("src/*.c", "[lib.c"), "/src/", "1000:1000")
    assert isinstance(env, Env)
    assert env.pairs == (("A", "1"), ("B", '"two words"'), ("C", "three\\ words"))
    assert isinstance(old, Env)
    assert old.pairs == (("OLD", "the rest of it"),)
    assert isinstance(workdir, Workdir)
    assert isinstance(user, User)
    assert isinstance(arg, Arg)
    assert arg.pairs == (("NAME", "x"), ("OTHER", None))
    assert isinstance(cmd, Cmd)
    assert (cmd.words, cmd.command) == (None, "echo $A")
    assert isinstance(entrypoint, Entrypoint)
    assert entrypoint.words == ("/bin/app", "a b")
    assert isinstance(label, Label)
    assert isinstance(expose, Expose)
    assert isinstance(shell, Shell)
    from_stage, add = last.instructions
    assert isinstance(from_stage, Copy)
    assert (from_stage.stage, from_stage.sources, from_stage.literal) == ("builder", ("/a b",), True)
    assert isinstance(add, Copy)
    assert file.stage("BUILDER", 1) is builder
    assert file.stage("0", 1) is builder
    assert file.stage("1", 1) is None


@pytest.mark.parametrize(
    ("text", "line", "why"),
    [
        ("", 1, "no FROM"),
        ("RUN x", 1, "before the first FROM"),
        ("FROM a:1\n\nVOLUME /x", 3, "'VOLUME' is not supported"),
        ("FROM a:1\nHEALTHCHECK CMD x", 2, "HEALTHCHECK"),
        ("FROM a:1\nONBUILD RUN x", 2, "ONBUILD"),
        ("FROM --platform=linux/arm64 a:1", 1, "--platform"),
        ("FROM a:1 AS", 1, "an image, AS and a name"),
        ("FROM a:1 AS Ünder", 1, "cannot be called"),
        ("FROM a:1\nRUN --mount=type=cache,target=/x y", 2, "--mount"),
        ("FROM a:1\nRUN cat <<EOF\nx\nEOF", 2, "here-document"),
        ("FROM a:1\nRUN", 2, "needs an argument"),
        ("FROM a:1\nRUN []", 2, "names no program"),
        ("FROM a:1\nCOPY --link a b", 2, "--link"),
        ("FROM a:1\nCOPY --from= a b", 2, "needs a value"),
        ("FROM a:1\nCOPY --chown=1 --chown=2 a b", 2, "twice"),
        ("FROM a:1\nCOPY a", 2, "at least a source and a target"),
        ("FROM a:1\nADD https://host/x /x", 2, "fetch it in a RUN"),
        ("FROM a:1\nADD x.tar.gz /x", 2, "does not unpack"),
        ("FROM a:1\nENV", 2, "needs an argument"),
        ("FROM a:1\nENV A", 2, "has no value"),
        ("FROM a:1\nENV A=1 B", 2, "not NAME=VALUE"),
        ("FROM a:1\nENV 1A=x", 2, "no name of a variable"),
        ('FROM a:1\nENV A="x', 2, "not closed"),
        ("FROM a:1\nSHELL /bin/sh", 2, "exec form"),
        ("# escape=x\nFROM a:1", 1, "escape"),
        ("# syntax=other/frontend\nFROM a:1", 1, "syntax"),
        ("# escape=`\n# escape=`\nFROM a:1", 2, "twice"),
        ("FROM a:1\nRUN \0", 2, "zero byte"),
    ],
)
def test_what_is_not_known_is_refused_with_its_line(text: str, line: int, why: str) -> None:
    with pytest.raises(InvalidArgumentError, match=why) as error:
        parse(text)
    assert error.value.details["line"] == line


def test_another_escape() -> None:
    lines, escape = read_lines("# escape=`\nFROM a:1\nRUN dir c:\\ `\n  b\\\nRUN x")
    assert escape == "`"
    assert [line.text for line in lines] == ["FROM a:1", "RUN dir c:\\   b\\", "RUN x"]


def test_a_doubled_escape_continues_nothing() -> None:
    lines, _ = read_lines("FROM a:1\nRUN a \\\\\nRUN b\\")
    assert [line.text for line in lines] == ["FROM a:1", "RUN a \\\\", "RUN b"]


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("$A-${B}", "1-"),
        ("${A:-x}${B:-x}${E:-x}", "1xx"),
        ("${A-x}${B-x}${E-x}", "1x"),
        ("${A:+x}${B:+x}${E:+x}${E+y}", "xy"),
        ("${B:-${C:-$A}}", "1"),
        ("'$A' \"$A\" \\$A", "$A 1 $A"),
        ('"a\\"b\\c"', 'a"b\\c'),
        ("a\\ b", "a b"),
        ("$", "$"),
        ("$1 $-", "$1 $-"),
        ("pre${A}post", "pre1post"),
    ],
)
def test_what_words_come_to(word: str, value: str) -> None:
    assert words.expand(1, word, {"A": "1", "E": ""}, "\\") == value


@pytest.mark.parametrize("word", ["${", "${A", "${A:", "${A:=x}", "${A#x}", "${1}", "'x", '"x', "${B:?it is needed}"])
def test_what_no_word_can_be(word: str) -> None:
    with pytest.raises(InvalidArgumentError) as error:
        words.expand(7, word, {"A": "1"}, "\\")
    assert error.value.details["line"] == 7


def test_values_cannot_grow_without_bound() -> None:
    variables = {"A": "x" * 100_000}
    with pytest.raises(InvalidArgumentError, match="come to more than"):
        words.expand(1, '"$A$A$A"', variables, "\\")
    with pytest.raises(InvalidArgumentError, match="nested"):
        words.expand(1, "${B:-" * 100 + "x" + "}" * 100, {}, "\\")


KEYWORDS = ["FROM a:1", "RUN", "COPY", "ADD", "ENV", "WORKDIR", "USER", "ARG", "CMD", "ENTRYPOINT", "LABEL", "SHELL"]
PIECES = st.sampled_from([*KEYWORDS, " ", "\n", "\\\n", "#", "=", "'", '"', "[", "]", "--from=", "<<EOF", "$A", "\t"])


def refused(call: Callable[[], object]) -> InvalidArgumentError | None:
    try:
        call()
    except InvalidArgumentError as error:
        return error
    return None


@given(st.one_of(st.text(), st.lists(st.one_of(PIECES, st.text(max_size=4))).map("".join)))
def test_any_text_is_read_or_refused_with_a_line(text: str) -> None:
    error = refused(lambda: parse(text))
    if error is None:
        assert parse(text).stages
    else:
        assert 1 <= error.details["line"] <= text.count("\n") + 1
        assert error.message.startswith("cannot build line ")


@given(st.text(alphabet="ab$A{}:-+?'\"\\ #"))
def test_any_word_comes_to_something_or_is_refused(text: str) -> None:
    error = refused(lambda: [words.expand(3, word, {"A": "1"}, "\\") for word in words.split(3, text, "\\")])
    assert error is None or error.details["line"] == 3


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "text",
    [
        "# check=x" + " " * 500_000 + "y\nFROM a",
        "#" + " " * 500_000 + "y\nFROM a",
        "FROM a\nENV A=" + "x" * 900_000,
        "FROM a\nRUN x" + "\\ " * 300_000 + "y",
    ],
)
def test_a_long_line_takes_no_longer_than_it_is(text: str) -> None:
    assert parse(text).stages[0].base.image == "a"
