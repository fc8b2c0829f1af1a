"""The SDK for code without an event loop: the same names, and every call waits.

    with DSecClient() as client:
        sandbox = client.run_container(DSecContainerRunArgs(container_image="debian:12"))
        print(sandbox.run_shell("echo hello").stdout)
        sandbox.stop()

Each open client has one background thread with an event loop, in which its asynchronous twin lives; a call hands a
coroutine over and waits for it, and Ctrl-C cancels it. Methods are made from those of the twin by `blocking`, names,
signatures and documentation included, so the two cannot drift apart. Any number of threads may use one client at once.
Callbacks (`progress`) run in the background thread and must not call the client.
"""

from .._archive import Transfer
from ..args import DSecContainerRunArgs
from ..errors import CommandFailedError, DSecError
from ..protocol.exec import ExecResult, OutputLimit
from .client import DSecClient
from .files import Files, Watch
from .process import Process
from .rollout import JobLease, Rollout
from .sandbox import Sandbox
from .session import Session

__all__ = [
    "CommandFailedError",
    "DSecClient",
    "DSecContainerRunArgs",
    "DSecError",
    "ExecResult",
    "Files",
    "JobLease",
    "OutputLimit",
    "Process",
    "Rollout",
    "Sandbox",
    "Session",
    "Transfer",
    "Watch",
]
