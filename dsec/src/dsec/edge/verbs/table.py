"""Method → verb."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from dsec.bus import Answerer, Caller, Request

from . import (
    create,
    diff,
    exec,
    export,
    files,
    history,
    image_data,
    image_diff,
    images,
    inspect,
    jobs,
    leases,
    list,
    log,
    logs,
    node,
    pack,
    pause,
    pull,
    push,
    session,
    shared_images,
    stop,
)

if TYPE_CHECKING:
    from dsec.edge.edge import Edge

Verb = Callable[["Edge", Request, Caller], Answerer]

VERBS: dict[str, Verb] = {
    "node.status": node.status,
    "node.doctor": node.doctor,
    "sandbox.create": create.create,
    "sandbox.inspect": inspect.inspect,
    "sandbox.list": list.list_sandboxes,
    "sandbox.logs": logs.logs,
    "sandbox.stop": stop.stop,
    "sandbox.pause": pause.pause,
    "sandbox.resume": pause.resume,
    "sandbox.pack_diff": pack.pack_diff,
    "sandbox.diff": diff.diff,
    "log.read": log.read,
    "log.output": log.output,
    "lease.take": leases.take,
    "lease.renew": leases.renew,
    "lease.release": leases.release,
    "rollout.list": leases.list_rollouts,
    "job.list": jobs.list_jobs,
    "job.inspect": jobs.inspect,
    "job.pause": jobs.act,
    "job.resume": jobs.act,
    "job.stop": jobs.act,
    "exec": exec.execute,
    "session.open": session.open_session,
    "session.run": session.run,
    "session.close": session.close,
    "file.stat": files.operate,
    "file.mkdir": files.operate,
    "file.remove": files.operate,
    "file.archive": files.operate,
    "file.read": files.operate,
    "file.write": files.operate,
    "file.move": files.operate,
    "file.list": files.operate,
    "file.extract": files.operate,
    "file.watch": files.operate,
    "image.build": images.build,
    "image.pull": pull.pull,
    "image.list": images.list_images,
    "image.inspect": images.inspect,
    "image.remove": images.remove,
    "image.verify": images.verify,
    "image.push": push.push,
    "image.export": export.export,
    "image.diff": image_diff.diff,
    "image.history": history.history,
    "image.fetch": image_data.fetch,
    "image.stats": image_data.stats,
    "image.publish": shared_images.publish,
    "image.pin": shared_images.pin,
    "image.gc": shared_images.collect,
}
