"""Admission: what a node has promised. By requests; limits may overcommit.

The last word on capacity: placement works with a view that may be old, the edge knows.
"""

from __future__ import annotations

from libdsec.protocol.errors import AdmissionRejectedError
from libdsec.protocol.spec import Requests


class Admission:
    def __init__(self, node: str, memory_bytes: int, pids: int) -> None:
        self._node = node
        self.memory_bytes = memory_bytes
        self.pids = pids
        self.memory_requested = 0
        self.pids_requested = 0

    def take(self, requests: Requests) -> None:
        """:raises AdmissionRejectedError: names the resource; nothing was taken."""
        self._fits("memory", self.memory_requested, requests.memory_bytes, self.memory_bytes, "bytes of memory")
        self._fits("pids", self.pids_requested, requests.pids, self.pids, "pids")
        self.adopt(requests)

    def adopt(self, requests: Requests) -> None:
        """Of a sandbox that lives already: counted whether or not it fits."""
        self.memory_requested += requests.memory_bytes
        self.pids_requested += requests.pids

    def give_back(self, requests: Requests) -> None:
        self.memory_requested -= requests.memory_bytes
        self.pids_requested -= requests.pids

    def _fits(self, resource: str, taken: int, asked: int, capacity: int, unit: str) -> None:
        if taken + asked > capacity:
            raise AdmissionRejectedError(
                f"cannot take another sandbox on {self._node}: {asked} {unit} were requested, "
                f"{capacity - taken} of {capacity} are left; stop a sandbox or request less",
                node=self._node,
                resource=resource,
            )
