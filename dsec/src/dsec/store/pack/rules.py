"""What is left out of a packed layer unless the caller says otherwise: traces of who worked in a sandbox, what
identifies it, secrets, and what can be had again at no cost.

Two things are weighed. What is not left out may leak: into every sandbox that is made of the layer, and to everyone who
may read it. What is left out wrongly breaks such a sandbox, where nobody looks. So secrets are looked for everywhere,
caches only where tools are known to have them; and what a build without a network needs (the registries of cargo, Go
and Maven, models of `.cache/huggingface`, environments of poetry) is no cache here. Directories that programs expect,
such as those below /var/log, stay: only files in them are named.

Byte code: it can tell what a source said that is gone, so it is left out, but for that of installed packages and the
standard library, which every new sandbox would have to compile anew.
"""

from __future__ import annotations

from typing import Final

from libdsec.protocol.images import ScrubRule

_LEFT_OUT: Final[tuple[tuple[str, str], ...]] = (
    (
        "temporary files",
        "tmp/* var/tmp/* run/lock/* run/**/*.pid var/lib/systemd/random-seed **/.local/share/Trash",
    ),
    (
        "history of a shell or tool",
        "**/.bash_history **/.zsh_history **/.ash_history **/.sh_history **/.local/share/fish/fish_history "
        "**/.python_history **/.ipython/profile_*/history.sqlite **/.node_repl_history **/.irb_history "
        "**/.psql_history **/.mysql_history **/.sqlite_history **/.rediscli_history **/.gdb_history "
        "**/.lesshst **/.viminfo **/.wget-hsts **/.local/share/recently-used.xbel",
    ),
    (
        "cache of a package manager",
        "var/cache/apt/archives/* var/cache/apt/*.bin var/lib/apt/lists/* var/cache/apk/* var/cache/dnf/* "
        "var/cache/yum/* var/cache/pacman/pkg/* var/cache/debconf/*-old var/lib/dpkg/*-old var/backups/* "
        "**/.cache/pip **/.cache/uv **/.cache/pypoetry/cache **/.cache/pypoetry/artifacts **/.cache/yarn "
        "**/.npm/_cacache **/.npm/_logs **/.cache/composer",
    ),
    (
        "cache of a build or test",
        "**/.pytest_cache **/.mypy_cache **/.ruff_cache **/.hypothesis **/.cache/go-build **/.cache/ccache **/.ccache",
    ),
    ("byte code that may outlive its source", "**/__pycache__"),
    (
        "log",
        "var/log/**/*.log var/log/**/*.log.* var/log/**/*.gz var/log/**/*.old var/log/apt/* var/log/installer/* "
        "var/log/journal/* var/log/syslog* var/log/messages* var/log/dmesg* var/log/wtmp* var/log/btmp* "
        "var/log/lastlog var/log/faillog",
    ),
    ("core dump", "var/crash/* var/lib/systemd/coredump/*"),
    ("swap or backup file of an editor", "**/.*.sw? **/.#* **/#*# **/*~"),
    (
        "key of ssh or GnuPG",
        "**/.ssh/id_* **/.ssh/*.pem **/.ssh/known_hosts* **/.ssh/authorized_keys* etc/ssh/ssh_host_*_key* "
        "**/.gnupg/private-keys-v1.d **/.gnupg/secring.gpg",
    ),
    (
        "credentials",
        "**/.netrc **/.git-credentials **/.config/git/credentials **/.config/gh/hosts.yml **/.pypirc root/.npmrc "
        "home/*/.npmrc **/.cargo/credentials* **/.gem/credentials **/.docker/config.json **/.dockercfg "
        "**/.aws/credentials **/.aws/sso **/.aws/cli **/.config/gcloud **/.azure **/.boto **/.s3cfg "
        "**/.config/rclone/rclone.conf **/.kube/config **/.vault-token **/.terraform.d/credentials.tfrc.json "
        "**/.cache/huggingface/token **/.huggingface/token",
    ),
    ("identity of one machine", "etc/machine-id var/lib/dbus/machine-id"),
)
"""(why, patterns), in the order in which they are asked."""

_KEPT: Final = (
    "**/site-packages/**/__pycache__ **/dist-packages/**/__pycache__ usr/lib/python3*/**/__pycache__ "
    "usr/local/lib/python3*/**/__pycache__"
)
_KEPT_WHY: Final = "byte code of installed packages"

RULES: Final[tuple[ScrubRule, ...]] = (
    *(ScrubRule(pattern, why) for why, patterns in _LEFT_OUT for pattern in patterns.split()),
    *(ScrubRule(pattern, _KEPT_WHY, keep=True) for pattern in _KEPT.split()),
)


def rules_table() -> str:
    """The rules as docs/packing.md has them: a Markdown table."""
    rows = [f"| {why} | {_patterns(patterns)} |" for why, patterns in _LEFT_OUT]
    rows.append(f"| kept all the same: {_KEPT_WHY} | {_patterns(_KEPT)} |")
    return "\n".join(("| what | patterns |", "|---|---|", *rows))


def _patterns(patterns: str) -> str:
    return " ".join(f"`{pattern}`" for pattern in patterns.split())
