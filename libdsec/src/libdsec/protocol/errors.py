"""The one error tree.

    DSecError
    ├── InvalidArgumentError          invalid_argument      a field of the request is wrong; says which
    ├── UnauthenticatedError          unauthenticated
    ├── PermissionDeniedError         permission_denied
    ├── NotFoundError                 not_found
    │   ├── SandboxNotFoundError      sandbox_not_found
    │   ├── SessionNotFoundError      session_not_found
    │   ├── ImageNotFoundError        image_not_found
    │   └── PathNotFoundError         path_not_found
    ├── ConflictError                 conflict
    │   ├── AlreadyExistsError        already_exists
    │   ├── SandboxStateError         sandbox_state         sandbox, state, operation, allowed states
    │   ├── ReplayDivergedError       replay_diverged       the step, what is recorded there, what came now
    │   └── LeaseLostError            lease_lost            somebody else holds the rollout now
    ├── QuotaExceededError            quota_exceeded
    ├── CapacityError                 capacity
    │   ├── NoEligibleNodeError       no_eligible_node      which filter emptied the list
    │   └── AdmissionRejectedError    admission_rejected    node, resource: place again elsewhere
    ├── UnavailableError              unavailable           the request surely did not run
    ├── OutcomeUnknownError           outcome_unknown       it may have run: never retried blindly
    ├── DeadlineExceededError         deadline_exceeded
    ├── UnsupportedOperationError     unsupported           this backend, machine or generation cannot
    ├── SandboxFailedError            sandbox_failed        the sandbox is gone; cause kept
    ├── CommandNotStartedError        command_not_started   kind, errno, stage
    ├── FileOperationError            file_operation        path, errno: the sandbox's own file system said no
    ├── NetworkDeniedError            network_denied
    ├── IntegrityError                integrity             bytes that do not match their digest
    ├── WireError                     wire                  the peer broke the protocol
    └── InternalError                 internal              a bug; carries an incident id

A command that ran and failed is a *result*, not an error; `ExecResult.check()` raises `CommandFailedError`, which like
`ClientClosedError` and `SessionClosedError` is outside the tree (misuse or the caller's own wish).

On the wire an error is `{code, message, details}`; the receiver looks the code up in `BY_CODE`, never a class path.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import msgspec

Retry = Literal["never", "same_request", "elsewhere"]


class ErrorBody(msgspec.Struct, frozen=True):
    """An error as it goes over the wire."""

    code: str
    message: str
    details: dict[str, Any] = {}


class DSecError(Exception):
    """Root of everything DSec can answer instead of a result.

    `details` holds plain values only (they go over the wire as they are).
    """

    code: ClassVar[str] = "dsec_error"
    http_status: ClassVar[int] = 500
    exit_code: ClassVar[int] = 70
    retry: ClassVar[Retry] = "never"

    def __init__(self, message: str, /, **details: Any) -> None:
        super().__init__(message)
        self.message = message
        self.details = details

    def __str__(self) -> str:
        return self.message

    def body(self) -> ErrorBody:
        """The wire form."""
        return ErrorBody(self.code, self.message, self.details)


class InvalidArgumentError(DSecError):
    code, http_status, exit_code = "invalid_argument", 400, 64


class UnauthenticatedError(DSecError):
    code, http_status, exit_code = "unauthenticated", 401, 77


class PermissionDeniedError(DSecError):
    code, http_status, exit_code = "permission_denied", 403, 77


class NotFoundError(DSecError):
    code, http_status, exit_code = "not_found", 404, 66


class SandboxNotFoundError(NotFoundError):
    code = "sandbox_not_found"


class SessionNotFoundError(NotFoundError):
    code = "session_not_found"


class ImageNotFoundError(NotFoundError):
    code = "image_not_found"


class PathNotFoundError(NotFoundError):
    code = "path_not_found"


class ConflictError(DSecError):
    code, http_status, exit_code = "conflict", 409, 73


class AlreadyExistsError(ConflictError):
    code = "already_exists"


class SandboxStateError(ConflictError):
    code = "sandbox_state"


class ReplayDivergedError(ConflictError):
    """Another request than the recorded one came at a step. `details`: scope, track, n, expected, got (methods and
    arguments in words)."""

    code = "replay_diverged"


class LeaseLostError(ConflictError):
    """A later epoch of the lease exists. `details`: kind, name, epoch (the caller's), held (the current)."""

    code = "lease_lost"


class QuotaExceededError(DSecError):
    code, http_status, exit_code = "quota_exceeded", 429, 75


class CapacityError(DSecError):
    code, http_status, exit_code = "capacity", 503, 75
    retry: ClassVar[Retry] = "elsewhere"


class NoEligibleNodeError(CapacityError):
    code = "no_eligible_node"


class AdmissionRejectedError(CapacityError):
    code = "admission_rejected"


class UnavailableError(DSecError):
    """It surely did not run. `details`: closing (true) where the server ends or drains: whoever repeats the request
    soon finds its successor."""

    code, http_status, exit_code = "unavailable", 503, 69
    retry: ClassVar[Retry] = "same_request"


class OutcomeUnknownError(DSecError):
    code, http_status, exit_code = "outcome_unknown", 502, 75


class DeadlineExceededError(DSecError):
    code, http_status, exit_code = "deadline_exceeded", 504, 75


class UnsupportedOperationError(DSecError):
    code, http_status, exit_code = "unsupported", 501, 69


class SandboxFailedError(DSecError):
    code, http_status, exit_code = "sandbox_failed", 410, 70


class CommandNotStartedError(DSecError):
    """The command never ran. `details`: kind (what), errno (int), stage (where: user, cwd, exec, ...)."""

    code, http_status, exit_code = "command_not_started", 422, 127


class FileOperationError(DSecError):
    """The sandbox's file system refused. `details`: path, errno (int)."""

    code, http_status, exit_code = "file_operation", 422, 74


class NetworkDeniedError(DSecError):
    code, http_status, exit_code = "network_denied", 403, 77


class IntegrityError(DSecError):
    code, http_status, exit_code = "integrity", 500, 65


class WireError(DSecError):
    code, http_status, exit_code = "wire", 502, 76


class InternalError(DSecError):
    code = "internal"


class CommandFailedError(Exception):
    """Raised by `ExecResult.check()` alone: the command ran and did not end with 0."""


class ClientClosedError(RuntimeError):
    """A call on a client that was closed or never opened."""


class SessionClosedError(RuntimeError):
    """A call on a session that was closed or whose shell has ended."""


def _tree(root: type[DSecError]) -> dict[str, type[DSecError]]:
    found = {root.code: root}
    for child in root.__subclasses__():
        found |= _tree(child)
    return found


BY_CODE: dict[str, type[DSecError]] = _tree(DSecError)
"""Code → class, for every class above."""


def from_body(body: ErrorBody) -> DSecError:
    """The error a peer sent. A code of a newer peer becomes a plain `DSecError` that keeps it in its details."""
    cls = BY_CODE.get(body.code)
    if cls is None:
        return DSecError(body.message, **{**body.details, "unknown_code": body.code})
    return cls(body.message, **body.details)
