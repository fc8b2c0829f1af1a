"""A command log, run again in fresh sandboxes and held against what is recorded.

Theory of operation. A *document* is a log in a file, as `dsec log --json` writes it. A *world* is one fresh sandbox for
each sandbox of the log, made by the recorded create (its image, layers, limits, environment, user; without rollout, job
and idempotency key), in which the recorded requests are said as they are, but for the numbers of sandboxes and
sessions. What a step gave, recorded or fresh, is boiled down to *facts*; two that have the same facts are the same.

    document ──► plan: run it, or skip it and why ──► first world ──► facts, against the record
                                                            └─ any difference ──► second world, up to the last one

A step whose facts differ from the record is `different` when both worlds gave the same, else `nondeterministic`.

A step is begun when all steps have ended that had ended before it began in the record, so that what ran at the same
time does so again, and what ran after something else runs after it.

What must always hold:
- nothing is compared that is not in the document, and nothing recorded is guessed;
- a step that cannot be said again is skipped with its reason; where it may have changed its sandbox, what follows there
  says that it stands on a gap;
- what a replay made it takes away, also when it fails; one that was killed leaves sandboxes that end when unused.
"""
