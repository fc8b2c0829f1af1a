"""The journal: what an edge must know again after a crash, in one SQLite file.

Theory of operation. One connection writes, on the event loop's thread: statements are submitted, and once a turn of
the loop those that have come are committed together, in their order; then their callbacks are called, in the same
order. The file is in WAL mode with synchronous=NORMAL and without automatic checkpoints, so that a commit is a few
writes into the page cache: it survives the end of this process at any line, and costs microseconds. What survives a
loss of power is what had been checkpointed, and the file is whole in any case. With `durable`, each commit is synced
before its callbacks; it runs in a thread then, and what is submitted meanwhile is the next batch.

Most statements of a busy node need not even wait for that: those that SQLite surely takes are *written ahead*,
appended to a file beside the database (`ahead`), and told; they are committed within 20 ms, or before anything is read
that they could change, many together. What a process that died had not committed yet, the next one commits before it
does anything else. Behind the file's room lies a reserve on the disk, which is given back when the disk is full: what
was told finds room then, and what comes later is refused until there is a reserve again. With `durable` nothing is
written ahead.

Checkpoints copy the WAL into the file, in a thread on a connection of their own, beside commits. When commits come
so fast that the WAL never gets to its beginning again, they are held (collected, not refused) for the moment that the
last piece takes.

What always holds: a callback is called after its unit is written, or `failed` is with one of our errors; one of the
two, once, on the loop. A batch that cannot be written (a full disk) is taken back whole. One that has a statement
SQLite refuses is taken back and its units run one by one, so that a mistake of one room costs no other.

Tables belong to rooms: each hands in a `Schema` whose steps are only added to. The journal knows none of them.
"""

from .ahead import Statement
from .journal import Journal
from .schema import Schema

__all__ = ["Journal", "Schema", "Statement"]
