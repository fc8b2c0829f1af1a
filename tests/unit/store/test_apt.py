"""The host's package sources, as distributions and clouds write them."""

from pathlib import Path

import pytest

from dsec.store.apt import AptSource, HostDistribution, host_distribution, host_sources, sources_for
from libdsec.protocol.errors import InvalidArgumentError, UnsupportedOperationError

BOOKWORM = HostDistribution("debian", "bookworm")
NOBLE = HostDistribution("ubuntu", "noble")

DEBIAN_DEB822 = """\
# a comment
Types: deb deb-src
URIs: http://mirror.example/debian
Suites: bookworm bookworm-updates
Components: main non-free-firmware
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: http://mirror.example/debian-security
Suites: bookworm-security
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Enabled: no
Types: deb
URIs: http://mirror.example/off
Suites: bookworm
Components: main

Types: deb
URIs: http://mirror.example/debian
Suites: bookworm-backports
Components: main
"""
UBUNTU_DEB822 = """\
Types: deb
URIs: http://mirror.example/ubuntu/
Suites: noble noble-updates noble-backports
Components: main restricted universe multiverse
Signed-By: /usr/share/keyrings/ubuntu-archive-keyring.gpg

## Ubuntu security updates.
Types: deb
URIs: http://security.example/ubuntu/
Suites: noble-security
Components: main restricted universe multiverse
Signed-By: /usr/share/keyrings/ubuntu-archive-keyring.gpg
"""
ONE_LINE = """\
# deb cdrom:[Debian GNU/Linux 12]/ bookworm main
deb cdrom:[disk]/ bookworm main
deb http://mirror.example/debian bookworm main contrib # comment
deb-src http://mirror.example/debian bookworm main
deb [arch=amd64 signed-by=/etc/apt/keyrings/own.gpg] https://security.example/debian-security bookworm-security main
deb [trusted=yes] file:/srv/flat ./
"""
EMBEDDED_KEY = """\
Types: deb
URIs: https://mirror.example/debian
Suites: bookworm
Components: main
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 mDMEYCQjIxYJKwYBBAHaRw8BAQdA
 -----END PGP PUBLIC KEY BLOCK-----
"""


def configure(tmp_path: Path, **files: str) -> str:
    (tmp_path / "sources.list.d").mkdir()
    for name, text in files.items():
        stem, _, ending = name.rpartition("_")
        path = tmp_path / "sources.list" if name == "main" else tmp_path / "sources.list.d" / f"{stem}.{ending}"
        path.write_text(text)
    return str(tmp_path)


def test_debian_as_deb822(tmp_path: Path) -> None:
    found = host_sources(configure(tmp_path, debian_sources=DEBIAN_DEB822))
    made = sources_for("bookworm", None, BOOKWORM, found)
    assert [(s.uris, s.suites, s.components) for s in made] == [
        (("http://mirror.example/debian",), ("bookworm", "bookworm-updates"), ("main", "non-free-firmware")),
        (("http://mirror.example/debian-security",), ("bookworm-security",), ("main",)),
    ]
    assert made[0].keyring == "/usr/share/keyrings/debian-archive-keyring.gpg"


def test_another_release_of_the_same_distribution(tmp_path: Path) -> None:
    found = host_sources(configure(tmp_path, debian_sources=DEBIAN_DEB822))
    made = sources_for("trixie", None, BOOKWORM, found)
    assert [suite for source in made for suite in source.suites] == ["trixie", "trixie-updates", "trixie-security"]


def test_ubuntu_without_its_backports(tmp_path: Path) -> None:
    found = host_sources(configure(tmp_path, ubuntu_sources=UBUNTU_DEB822))
    made = sources_for("noble", None, NOBLE, found)
    assert [suite for source in made for suite in source.suites] == ["noble", "noble-updates", "noble-security"]
    assert made[1].components == ("main", "restricted", "universe", "multiverse")


def test_one_line_sources(tmp_path: Path) -> None:
    found = host_sources(configure(tmp_path, main=ONE_LINE))
    assert [source.uris[0] for source in found] == [
        "http://mirror.example/debian",
        "https://security.example/debian-security",
        "file:/srv/flat",
    ]
    made = sources_for("bookworm", None, BOOKWORM, found)
    assert [(s.suites, s.components, s.keyring) for s in made] == [
        (("bookworm",), ("main", "contrib"), None),
        (("bookworm-security",), ("main",), "/etc/apt/keyrings/own.gpg"),
    ]
    assert "arch" not in made[1].fields


def test_vendors_repositories_are_left_out(tmp_path: Path) -> None:
    vendor = "deb http://vendor.example/debian stable main\ndeb http://vendor.example/x bookworm-tools main\n"
    found = host_sources(configure(tmp_path, debian_sources=DEBIAN_DEB822, vendor_list=vendor))
    made = sources_for("bookworm", None, BOOKWORM, found)
    assert {source.uris[0] for source in made} == {
        "http://mirror.example/debian",
        "http://mirror.example/debian-security",
    }


def test_a_list_of_mirrors_is_read(tmp_path: Path) -> None:
    mirrors = tmp_path / "mirrors.list"
    mirrors.write_text("# mirrors\nhttps://first.example/debian\tpriority:1\nhttps://second.example/debian\n")
    text = DEBIAN_DEB822.replace("http://mirror.example/debian\n", f"mirror+file://{mirrors}\n", 1)
    found = host_sources(configure(tmp_path, debian_sources=text))
    assert found[0].uris == ("https://first.example/debian",)
    mirrors.unlink()
    with pytest.raises(UnsupportedOperationError, match="mirrors"):
        host_sources(str(tmp_path))


def test_a_key_in_the_source_goes_over_whole(tmp_path: Path) -> None:
    (source,) = host_sources(configure(tmp_path, debian_sources=EMBEDDED_KEY))
    assert source.keyring is None
    again = tmp_path / "again"
    again.mkdir()
    assert host_sources(configure(again, made_sources=source.stanza())) == [source]
    assert " mDMEYCQjIxYJKwYBBAHaRw8BAQdA\n" in source.stanza()


def test_a_given_mirror_takes_the_host_s_key_and_components(tmp_path: Path) -> None:
    found = host_sources(configure(tmp_path, debian_sources=DEBIAN_DEB822))
    (made,) = sources_for("sid", "https://other.example/debian", BOOKWORM, found)
    assert (made.uris, made.suites, made.components) == (
        ("https://other.example/debian",),
        ("sid",),
        ("main", "non-free-firmware"),
    )
    assert made.keyring == "/usr/share/keyrings/debian-archive-keyring.gpg"
    (bare,) = sources_for("sid", "file:/srv/mirror", None, [], str(tmp_path))
    assert bare == AptSource(("file:/srv/mirror",), ("sid",), ("main",))


def test_a_release_of_another_distribution_needs_a_mirror_and_takes_nothing_of_the_host(tmp_path: Path) -> None:
    found = host_sources(configure(tmp_path, debian_sources=DEBIAN_DEB822))
    (tmp_path / "ubuntu.csv").write_text("version,codename,series,created\n24.04 LTS,Noble Numbat,noble,2023-10-26\n")
    (tmp_path / "debian.csv").write_text("version,codename,series,created\n12,Bookworm,bookworm,2021-08-14\n")
    with pytest.raises(UnsupportedOperationError, match="one of ubuntu; give a mirror"):
        sources_for("noble", None, BOOKWORM, found, str(tmp_path))
    (made,) = sources_for("noble", "http://mirror.example/ubuntu", BOOKWORM, found, str(tmp_path))
    assert (made.suites, made.components) == (("noble",), ("main", "universe"))
    assert "debian" not in made.stanza()
    assert len(sources_for("bookworm", None, BOOKWORM, found, str(tmp_path))) == 2


@pytest.mark.parametrize("mirror", ["nonsense", "ftp//x", "http://a b", "http://a\nTrusted: yes", "-oX=y", ""])
def test_a_mirror_that_is_no_address_is_refused(mirror: str) -> None:
    with pytest.raises(InvalidArgumentError, match="mirror"):
        sources_for("sid", mirror, BOOKWORM, [])


def test_a_host_without_sources_of_its_own_says_so(tmp_path: Path) -> None:
    assert host_sources(str(tmp_path)) == []
    with pytest.raises(UnsupportedOperationError, match="give a mirror"):
        sources_for("bookworm", None, BOOKWORM, [])


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('ID=debian\nVERSION_ID="12"\nVERSION_CODENAME=bookworm\n', HostDistribution("debian", "bookworm")),
        ("ID=ubuntu\nID_LIKE=debian\nVERSION_CODENAME=noble\n", HostDistribution("ubuntu", "noble")),
        ("ID=mint\nID_LIKE='ubuntu debian'\nVERSION_CODENAME=xia\n", HostDistribution("mint", "xia")),
    ],
)
def test_the_host_s_distribution(tmp_path: Path, text: str, found: HostDistribution) -> None:
    (tmp_path / "os-release").write_text(text)
    assert host_distribution(str(tmp_path / "os-release")) == found


def test_another_distribution_says_what_can_be_done(tmp_path: Path) -> None:
    (tmp_path / "os-release").write_text('ID=fedora\nVERSION_ID=41\nVERSION_CODENAME=""\n')
    with pytest.raises(UnsupportedOperationError, match="directory or a tar"):
        host_distribution(str(tmp_path / "os-release"))
    with pytest.raises(UnsupportedOperationError):
        host_distribution(str(tmp_path / "none"))
