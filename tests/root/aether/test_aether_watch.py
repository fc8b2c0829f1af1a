"""file.watch: what changes below a path."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from conversation import Call, Conversation
from rig import BY_DESCRIPTORS

from libdsec.protocol.errors import PathNotFoundError, QuotaExceededError
from libdsec.protocol.files import FileEvent
from libdsec.protocol.frames import STDOUT

pytestmark = BY_DESCRIPTORS


@pytest.fixture
def tree(talk: Conversation) -> Any:
    talk.exec("rm -rf /tmp/w; mkdir -p /tmp/w/sub; touch /tmp/w/old")
    yield "/tmp/w"
    talk.exec("rm -rf /tmp/w")


def watch(talk: Conversation, path: str, **changes: Any) -> Call:
    """Watching: the first, empty DATA has come."""
    call = talk.start_file("watch", path, **changes)
    while not call.streams[STDOUT] and not call.over:
        talk.take()
    return call


def events(call: Call) -> list[tuple[str, str]]:
    batches = (msgspec.msgpack.decode(data, type=list[FileEvent]) for data in call.streams[STDOUT])
    return [(event.kind, event.path) for batch in batches for event in batch]


def until(talk: Conversation, call: Call, *wanted: tuple[str, str]) -> list[tuple[str, str]]:
    while not set(wanted) <= set(events(call)):
        talk.take()
    return events(call)


def test_changes_of_one_directory(talk: Conversation, tree: str) -> None:
    call = watch(talk, tree)
    talk.exec("cd /tmp/w; echo 1 >new; mv new other; chmod 600 old; echo 2 >sub/unseen; rm other")
    seen = until(talk, call, ("removed", "other"))
    assert [event for event in seen if event[1] != "sub"] == [
        ("created", "new"), ("modified", "new"), ("moved_from", "new"), ("moved_to", "other"), ("attributes", "old"),
        ("removed", "other"),
    ]  # fmt: skip
    talk.cancel(call)
    assert talk.finish(call).answer["entries"] == len(events(call))


def test_a_recursive_watch_follows_new_directories(talk: Conversation, tree: str) -> None:
    call = watch(talk, tree, recursive=True)
    talk.exec("cd /tmp/w; echo 1 >sub/seen; mkdir -p a/b/c; echo 2 >a/b/c/deep")
    until(talk, call, ("created", "sub/seen"), ("created", "a/b/c/deep"))
    # only now: what has gone elsewhere before it was looked into is told of where it has gone
    talk.exec("mv /tmp/w/a /tmp/w/z")
    until(talk, call, ("moved_to", "z"))
    talk.exec("echo 3 >/tmp/w/z/b/later")
    until(talk, call, ("created", "z/b/later"))
    talk.cancel(call)
    talk.finish(call)


def test_a_watch_ends_with_what_it_watches(talk: Conversation, tree: str) -> None:
    call = watch(talk, tree)
    talk.exec("rm -rf /tmp/w")
    assert talk.finish(call).answer["entries"] > 0
    assert ("removed", "") in events(call)


def test_a_reader_that_falls_behind_is_told(talk: Conversation, tree: str) -> None:
    call = watch(talk, tree)
    call.grants = False
    talk.exec('cd /tmp/w; perl -e \'for (1..20000) { rename "old", "new"; rename "new", "old" }\'')
    call.grants = True
    talk.grant(call, STDOUT, 1 << 18)
    talk.exec("true")
    until(talk, call, ("overflow", ""))
    talk.cancel(call)
    talk.finish(call)


def test_bounds(talk: Conversation, tree: str) -> None:
    missing = talk.start_file("watch", f"{tree}/missing")
    assert isinstance(talk.finish(missing).error, PathNotFoundError)
    calls = [watch(talk, tree) for _ in range(16)]
    assert isinstance(watch(talk, tree).error, QuotaExceededError)
    for call in calls:
        talk.cancel(call)
    for call in calls:
        assert talk.finish(call).error is None


def test_names_that_grow_on_the_wire_fit_into_its_frames(talk: Conversation, tree: str) -> None:
    """Each byte that is no text becomes three, so a frame's worth of events is counted in bytes."""
    call = watch(talk, tree, recursive=True)
    deep = "for (1..13) { mkdir(qq(\\xff) x 250); chdir(qq(\\xff) x 250); }"
    fill = "for (1..200) { open(my $f, '>', qq(\\xff) x 250 . $_); }"
    talk.exec(["/usr/bin/perl", "-e", f"chdir('{tree}'); {deep} sleep(1); {fill}"])
    talk.exec(f"touch {tree}/last")
    created = [path for kind, path in until(talk, call, ("created", "last")) if kind == "created"]
    assert len([path for path in created if path.endswith("200")]) == 1
    assert len(created) == 13 + 200 + 1
