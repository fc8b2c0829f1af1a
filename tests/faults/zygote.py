"""Starts servers without the second that their imports take: has imported everything, and forks one for each line.

A line on standard input is a JSON map of environment variables; the answer is a line with the server's pid. It ends at
the end of its input; the servers go on.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import signal
import sys


def main() -> None:
    import dsec.cli.serve
    import dsec.serve  # noqa: F401 - what the servers need

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them: who wants to know has a pidfd
    gc.freeze()
    for line in sys.stdin:
        environment = json.loads(line)
        pid = os.fork()
        if pid == 0:
            try:
                _serve(environment)
            finally:
                os._exit(70)
        print(pid, flush=True)


def _serve(environment: dict[str, str]) -> None:
    from dsec import faults
    from dsec.config import load
    from dsec.serve import main

    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.environ.update(environment)
    nothing = os.open(os.devnull, os.O_RDONLY)
    log = os.open(environment["FAULTS_LOG"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for source, target in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    os.closerange(3, 64)
    importlib.reload(faults)  # it reads the environment when it is imported
    main(load())


if __name__ == "__main__":
    main()
