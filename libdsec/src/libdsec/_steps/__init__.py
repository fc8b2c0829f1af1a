"""How the calls of handles become steps of a command log, and come out of it again.

    Sandbox, Session, Files ──► Track ──► Channel           a step with the track's next number
                                  │
                                  └──► Recording            one that an attached log already has: nothing is sent

A `Scope` is one command log as a client writes it: its tracks and, where it was attached, the lease that it holds and
the recorded steps that it was given at that moment. A `Track` numbers in the order in which calls begin, after their
arguments were encoded and before anything is waited for, so that the same program gives the same numbers. Tracks on
which the node numbers (`cli`, `other`) have no numbers here and nothing is replayed on them.

What must always hold:
- a number goes to one request: a call that is said again after a loss is said under its own number, and a number is
  given back only when its call surely did not run and is not recorded, or is recorded and could not be read;
- a step whose outcome nobody knows runs once more where the caller has chosen so, and no third time by itself;
- what is replayed has the recorded request's digest, and of input also that; else nothing is told but the difference;
- nothing is replayed or sent once the lease is lost.
"""
