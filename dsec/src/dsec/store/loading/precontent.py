"""Pre-content events of a node: one group, one thread that reads it and never waits for anything else.

A read of what is there is answered at once. Every other event is recorded (`pending`) before it is handed on, so that a
successor of this process can answer it: the group is held by the fork server too, and who waits goes on waiting while
nobody reads it. Events are read one at a time: at most one was taken and not recorded when this process dies. Its
reader is refused by the successor, since nobody knows what it wanted; the kernel asks again for most such reads.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import resource
import select
import threading
import time
from collections.abc import Callable

import structlog

from dsec import faults
from dsec.linux import KernelError, fanotify
from dsec.store.records import LayerRecord

from .pending import PendingEvents, Taken

_LAYER_PATH = re.compile(r"/layers/([0-9a-f]{64})/data\.erofs\Z")
MAX_WAITING = 4096
"""Events that are taken and not answered, each a descriptor of this process, of which they may be a quarter. More wait
in the kernel."""
MAX_DESCRIPTORS = 1 << 20
"""Numbers that an event may have; systems there are with limits of a thousand times that, too many to be tried."""
ROOM_S = 0.1
PAUSE_S = 0.01
"""After an event that could not be taken (no descriptor left)."""

_log = structlog.get_logger("dsec.loading")

IsThere = Callable[[str, fanotify.Event], bool]
"""(digest, event), called in the reading thread: whether all that it reads is there."""
OnEvent = Callable[[str, fanotify.Event], None]
"""(digest, event), called in the reading thread; must not wait."""


class PreContent:
    """The group. `start` is called once; `answer` from any thread."""

    def __init__(self, group: int, pending_path: str) -> None:
        """`group` becomes this object's."""
        self.group = group
        self._pending = PendingEvents(pending_path)
        self._digests: dict[tuple[int, int], str] = {}
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._thread: threading.Thread | None = None
        self._room = _Room(min(MAX_WAITING, _descriptors() // 4))
        self._stopping = False
        self._inheriting = threading.Lock()
        self._inherited: dict[int, int | None] = {}
        """Numbers of events that a dead process had taken, each with what keeps a new event from getting that number:
        an answer would go to the older one."""

    def inherit(self, *, fresh: bool) -> list[Taken]:
        """What waits for an answer that a dead process had taken; before `start`. Whatever else it may have taken in
        its last moment is refused. `fresh`: the group is new, nothing waits."""
        if fresh:
            self._pending.forget()
            return []
        taken = self._pending.read()
        known = {event.descriptor for event in taken}
        self._inherited = {number: _occupy(number) for number in known}
        refused = [n for n in range(_descriptors()) if n not in known and fanotify.answer(self.group, n, errno.EIO)]
        if refused:
            _log.warning(
                "reads were refused: taken by a process that died before it wrote them down", count=len(refused)
            )
        return taken

    def start(self, is_there: IsThere, on_event: OnEvent, is_awaited: Callable[[], bool]) -> None:
        """`is_awaited`: somebody waits for an event of our own, so that the bound of those who wait does not count."""
        self._is_there, self._on_event = is_there, on_event
        self._thread = threading.Thread(target=self._run, args=(is_awaited,), name="pre-content", daemon=True)
        self._thread.start()

    def mark(self, layer: LayerRecord) -> None:
        """From now on reads of the layer's data raise events.

        :raises KernelError: they cannot.
        """
        status = os.stat(layer.data)
        # a file that it had before must not be taken for this one: what came since is not in it
        self._forget(layer.digest)
        self._digests[status.st_dev, status.st_ino] = layer.digest
        fanotify.mark(self.group, layer.data)

    def unmark(self, layer: LayerRecord) -> None:
        fanotify.unmark(self.group, layer.data)
        self._forget(layer.digest)

    def answer(self, descriptor: int, refusal: int = 0, *, keep: bool = False) -> None:
        """Once an event. Its descriptor is closed, but one that is to be kept."""
        try:
            fanotify.answer(self.group, descriptor, refusal)
            faults.point("loading.event.answered")
            self._pending.clear(descriptor)
        finally:
            if not keep:
                os.close(descriptor)
            self._room.give_back()

    def answer_inherited(self, number: int, refusal: int = 0) -> None:
        """Once an event that a dead process had taken."""
        with self._inheriting:
            if number not in self._inherited:
                return  # refused, when its number was wanted
            fanotify.answer(self.group, number, refusal)
            self._pending.clear(number)
            placeholder = self._inherited.pop(number)
        if placeholder is not None:
            os.close(placeholder)

    def stop(self) -> None:
        """Read no more."""
        self._stopping = True
        if self._thread is not None:
            os.write(self._wake_write, b"x")
            self._thread.join()

    def close(self) -> None:
        """After `stop`, when nothing is answered any more. Who waits goes on waiting if another process has the group,
        else goes on."""
        for descriptor in (self.group, self._wake_read, self._wake_write):
            os.close(descriptor)
        self._pending.close()

    def _forget(self, digest: str) -> None:
        for inode in [inode for inode, of in list(self._digests.items()) if of == digest]:
            self._digests.pop(inode, None)

    def _run(self, is_awaited: Callable[[], bool]) -> None:
        poll = select.poll()
        poll.register(self.group, select.POLLIN)
        poll.register(self._wake_read, select.POLLIN)
        busy = False
        while not self._stopping:
            if not busy:
                poll.poll()
            if not self._room.take(ROOM_S, beyond=is_awaited):
                continue
            try:
                event, shares_number = self._next()
            except KernelError as error:
                _log.error("a read was refused: its event could not be taken", error=str(error))
                event = None
                time.sleep(PAUSE_S)
            busy = event is not None
            if event is None:
                self._room.give_back()
                continue
            try:
                if shares_number:
                    self._refuse_older(event.descriptor)
                self._take(event)
            except Exception as error:
                # one that is lost must not cost every other its answer
                _log.error("an event was lost", error=str(error), exc_info=error)

    def _next(self) -> tuple[fanotify.Event | None, bool]:
        """The next event, and whether one that was inherited has its number. From here on nobody gives that one its
        answer: it may have had it, and then this one would be let go on without its data."""
        with self._inheriting:
            event = fanotify.read_event(self.group)
            if event is None or event.descriptor not in self._inherited:
                return event, False
            del self._inherited[event.descriptor]
            return event, True

    def _refuse_older(self, number: int) -> None:
        _log.warning("a read was refused: another has its number now")
        fanotify.answer(self.group, number, errno.EIO)
        self._pending.clear(number)

    def _take(self, event: fanotify.Event) -> None:
        faults.point("loading.event.taken")
        try:
            digest = self._digest(event.descriptor)
            there = self._is_there(digest, event)
            if not there:
                self._pending.record(event.descriptor, digest, event.offset, event.length)
        except (OSError, ValueError) as error:
            _log.error("a read was refused: its event could not be written down", error=str(error))
            self.answer(event.descriptor, errno.EIO)
            return
        if there:
            self._let_go_on(event.descriptor)
            return
        faults.point("loading.event.recorded")
        self._on_event(digest, event)

    def _let_go_on(self, descriptor: int) -> None:
        """Whoever reads what is there. Nothing was written down of it."""
        try:
            fanotify.answer(self.group, descriptor)
        finally:
            os.close(descriptor)
            self._room.give_back()

    def _digest(self, descriptor: int) -> str:
        """:raises ValueError: it is no layer's file."""
        status = os.fstat(descriptor)
        digest = self._digests.get((status.st_dev, status.st_ino))
        if digest is None:
            # marked by an earlier process
            path = os.readlink(f"/proc/self/fd/{descriptor}")
            match = _LAYER_PATH.search(path)
            if match is None:
                raise ValueError(f"cannot tell which layer {path} is of")
            digest = f"sha256:{match[1]}"
            self._digests[status.st_dev, status.st_ino] = digest
        return digest


class _Room:
    """For so many events, or more where one more must be looked at."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._taken = 0
        self._changed = threading.Condition()

    def take(self, timeout_s: float, *, beyond: Callable[[], bool]) -> bool:
        with self._changed:
            has_room = self._changed.wait_for(lambda: self._taken < self._most, 0 if beyond() else timeout_s)
            if not has_room and not beyond():
                return False
            self._taken += 1
            return True

    def give_back(self) -> None:
        with self._changed:
            self._taken -= 1
            self._changed.notify()


def _descriptors() -> int:
    """How many this process may have, as far as it will ever have so many."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return MAX_DESCRIPTORS if limit == resource.RLIM_INFINITY else min(limit, MAX_DESCRIPTORS)


def _occupy(number: int) -> int | None:
    """Have a descriptor of that number. None: there is one, of something else."""
    null = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
    if null == number:
        return null
    try:
        copy = fcntl.fcntl(null, fcntl.F_DUPFD_CLOEXEC, number)
    finally:
        os.close(null)
    if copy != number:
        os.close(copy)
        return None
    return copy
