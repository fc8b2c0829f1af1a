"""Reports in words, for the terminal's table and the page's alike."""

from __future__ import annotations

from .figures import TARGETS, Figure, Machine, Report, Target

ABOUT = {
    "create": "create → first output of `sh -c 'echo ready'`",
    "lifecycle": "whole lives (create, run /bin/true, stop) a second",
    "exec": "`sh -c true` in something that runs already",
    "idle-memory": "memory of one idle sandbox, everything included",
    "layer-build": "a layer from a directory",
    "layers": "create → a file of a workspace and of three toolkits read",
    "burst": "200 sandboxes over 40 images that are not here, until each has read its working set",
    "pack": "10 MB written in a sandbox over an image of 1 GB, until they are an image",
    "log-cost": "`sh -c true` with a command log and without",
    "fast-forward": "recorded steps a second through the SDK",
    "pause": "a call to a paused sandbox with 200 MB in it, and what pausing keeps of them",
    "adoption": "from a server's start until what a killed one left has answered",
}

LABELS = {
    "mkfs_erofs": "mkfs.erofs",
    "docker_commit": "docker commit",
    "umoci_repack": "umoci repack",
    "tar_gz": "tar.gz",
    "tar_gz_ready": "tar.gz, until ready",
    "tar_gz_written": "tar.gz, bytes written",
    "skopeo_ready": "skopeo copy and tar, until ready",
    "skopeo_written": "skopeo copy and tar, bytes written",
    "least_written": "least pull, bytes written",
    "image_bytes": "bytes of the images, fetched",
    "floor": "floor (C)",
    "ours": "DSec",
    "resident_after": "200 MB that do not compress, swap file",
    "resident_after_zram": "200 MB that compress 20 : 1, zram",
    "resident_after_files": "200 MB of a file",
    "run": "run for the first time",
    "no_log": "no log",
    "no_log_100kb": "no log, 100 KB of output",
    "no_log_lifecycle": "no log, whole lives",
}


def number(value: float) -> str:
    """Three digits that count, more where the number has them anyway."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def amount(figure: Figure) -> str:
    return f"{number(figure.value)} {figure.unit}"


def p99(figure: Figure) -> str:
    return "" if figure.p99 is None else f"{number(figure.p99)} {figure.unit}"


def detail(figure: Figure) -> str:
    return ", ".join(f"{name} {number(value)}" for name, value in figure.detail.items())


def target(name: str, against: str) -> Target | None:
    """What ours is held to against this thing; against `ours` an absolute bound."""
    wanted = None if against == "ours" else against
    return next((t for t in TARGETS.get(name, ()) if t.against == wanted), None)


def bound(aim: Target, unit: str) -> str:
    sign = "≤" if aim.bound == "<=" else "≥"
    return f"{sign} {aim.value:g}" + (f" {unit}" if aim.against is None else "")


def verdict(aim: Target, report: Report) -> str:
    return {True: "holds", False: "falls short", None: "not measured"}[aim.holds(report)]


def rows(report: Report) -> list[tuple[str, Figure | None]]:
    """Ours, the floor, the peers: every line of a table."""
    floor = [] if report.floor is None else [("floor", report.floor)]
    return [("ours", report.ours), *floor, *report.peers.items()]


def machine(facts: Machine) -> str:
    return (
        f"{facts.cores} cores ({facts.processor}), {facts.memory_mb:,} MB, Linux {facts.kernel}, "
        f"{facts.distribution}, cgroup {facts.cgroup}, load {facts.load:.1f} before, {facts.date}"
    )
