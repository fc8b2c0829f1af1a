"""Running benches by name on one ground."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from types import ModuleType

from libdsec.protocol.errors import InvalidArgumentError

from . import (
    adoption,
    burst,
    create,
    exec,
    fast_forward,
    idle_memory,
    layer_build,
    layers,
    lifecycle,
    log_cost,
    pack,
    pause,
)
from .figures import Report
from .ground import Options, Say, ground

BENCHES: Mapping[str, ModuleType] = {
    m.NAME: m
    for m in (
        create,
        lifecycle,
        exec,
        idle_memory,
        layer_build,
        layers,
        burst,
        pack,
        log_cost,
        fast_forward,
        adoption,
        pause,
    )
}
"""Name → module with NAME, SAMPLES and `measure(ground, samples, progress)`."""


async def run(names: Sequence[str], samples: int | None, options: Options, say: Say) -> AsyncGenerator[Report, None]:
    """Each bench's report as it is there, all on one ground.

    :raises InvalidArgumentError: no bench of a name, or a number of samples that says nothing.
    """
    unknown = [name for name in names if name not in BENCHES]
    if unknown:
        raise InvalidArgumentError(f"cannot run bench {unknown[0]!r}: there are {', '.join(BENCHES)}", field="name")
    if samples is not None and samples < 1:
        raise InvalidArgumentError(f"cannot take {samples} samples: it must be at least 1", field="n")
    async with ground(options, say) as where:
        for name in names:
            bench = BENCHES[name]

            def progress(done: int, total: int, what: str, name: str = name) -> None:
                say(f"{name}: {what} {100 * done // max(total, 1)}%")

            report: Report = await bench.measure(where, samples or bench.SAMPLES, progress)
            yield report
