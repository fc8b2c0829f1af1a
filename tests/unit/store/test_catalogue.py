"""Names point at images, once and for good."""

import contextlib
import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from dsec.store import catalogue as catalogue_module
from dsec.store.catalogue import MIGRATIONS, Catalogue
from dsec.store.records import ImageRecord, LayerRecord
from libdsec.protocol.environment import ImageConfig
from libdsec.protocol.errors import (
    AlreadyExistsError,
    ConflictError,
    ImageNotFoundError,
    InternalError,
    InvalidArgumentError,
)


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "catalogue.db")


@pytest.fixture
def catalogue(path: str) -> Iterator[Catalogue]:
    with contextlib.closing(Catalogue(path)) as catalogue:
        yield catalogue


def layer(catalogue_path: str, number: int) -> LayerRecord:
    name = f"{number:064x}"
    home = Path(catalogue_path).parent / "layers" / name
    return LayerRecord(f"sha256:{name}", f"{home}/metadata.erofs", f"{home}/data.erofs", 4096, 8192, 3, "ab" * 32)


def image(path: str, ref: str, *layers: int, parent: str | None = None) -> ImageRecord:
    config = ImageConfig({"PATH": "/bin", "K": "ü"}, "/work", "1000:1000")
    return ImageRecord(ref, "base", tuple(layer(path, n) for n in layers), config, 12.5, parent)


def test_what_was_published_is_found_the_same(path: str, catalogue: Catalogue) -> None:
    one = image(path, "repo/one:v1", 2, 1, 3, parent="debian:12")
    catalogue.publish(one)
    assert catalogue.get("repo/one:v1") == one
    assert catalogue.layer(one.layers[1].digest) == one.layers[1]
    catalogue.close()
    reopened = Catalogue(path)
    assert reopened.get("repo/one:v1") == one
    assert reopened.get("repo/one:v1").info().layers[0].digest == layer(path, 2).digest
    reopened.close()


def test_opening_again_writes_nothing(path: str, catalogue: Catalogue) -> None:
    """A node whose disk is full must start: nobody could make room otherwise."""
    catalogue.publish(image(path, "one:v1", 1))
    catalogue.close()
    writer = sqlite3.connect(path, isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")  # whoever writes now would have to wait, and fail
    reopened = Catalogue(path)
    assert reopened.exists("one:v1")
    reopened.close()
    writer.close()


def test_a_name_is_published_once(path: str, catalogue: Catalogue) -> None:
    catalogue.publish(image(path, "one:v1", 1))
    with pytest.raises(AlreadyExistsError, match="one:v1"):
        catalogue.publish(image(path, "one:v1", 2))
    assert [catalogue.has_layer(layer(path, number).digest) for number in (1, 2)] == [True, False]


def test_the_list_is_by_name(path: str, catalogue: Catalogue) -> None:
    for ref in ("b:1", "a:2", "a:1", "c/d:1"):
        catalogue.publish(image(path, ref, 1))
    assert [found.ref for found in catalogue.list()] == ["a:1", "a:2", "b:1", "c/d:1"]


@pytest.mark.parametrize("ref", ["none", "Upper:1", "a:", ":1", "a:1:2", "../a:1", "a:1\n", "a" * 400 + ":1"])
def test_bad_names_are_refused(path: str, catalogue: Catalogue, ref: str) -> None:
    with pytest.raises(InvalidArgumentError):
        catalogue.get(ref)
    with pytest.raises(InvalidArgumentError):
        catalogue.publish(image(path, ref, 1))


def test_what_fits_into_no_answer_is_not_published(path: str, catalogue: Catalogue) -> None:
    config = ImageConfig(env={"A": "x" * 140_000})
    with pytest.raises(InvalidArgumentError, match="its configuration"):
        catalogue.publish(msgspec.structs.replace(image(path, "a:1", 1), config=config))
    assert catalogue.list() == ()


def test_what_is_not_there_is_said(catalogue: Catalogue) -> None:
    with pytest.raises(ImageNotFoundError, match="one:v1"):
        catalogue.get("one:v1")
    with pytest.raises(ImageNotFoundError, match="one:v1"):
        catalogue.remove("one:v1")
    with pytest.raises(ImageNotFoundError, match="sha256:00"):
        catalogue.layer("sha256:00")


def test_removing_tells_which_layers_nobody_has(path: str, catalogue: Catalogue) -> None:
    catalogue.publish(image(path, "one:v1", 1, 2))
    catalogue.publish(image(path, "two:v1", 2, 3))
    assert catalogue.remove("one:v1") == (layer(path, 1).digest,)
    with pytest.raises(ImageNotFoundError):
        catalogue.get("one:v1")
    assert set(catalogue.remove("two:v1")) == {layer(path, 2).digest, layer(path, 3).digest}
    assert not any(catalogue.has_layer(layer(path, number).digest) for number in (1, 2, 3))
    catalogue.publish(image(path, "one:v1", 4))
    assert catalogue.get("one:v1").layers[0].digest == layer(path, 4).digest


def test_a_check_that_refuses_changes_nothing(path: str, catalogue: Catalogue) -> None:
    catalogue.publish(image(path, "one:v1", 1))

    def refuse(orphans: tuple[str, ...]) -> None:
        raise ConflictError(f"in use: {orphans}")

    with pytest.raises(ConflictError, match="in use"):
        catalogue.remove("one:v1", refuse)
    assert catalogue.get("one:v1").ref == "one:v1"


def test_another_connection_s_changes_are_seen(path: str, catalogue: Catalogue) -> None:
    other = Catalogue(path)
    catalogue.publish(image(path, "one:v1", 1))
    assert other.get("one:v1").config.cwd == "/work"
    catalogue.remove("one:v1")
    with pytest.raises(ImageNotFoundError):
        other.get("one:v1")
    other.close()


def test_nobody_who_reads_waits_for_a_commit(path: str, catalogue: Catalogue) -> None:
    one = image(path, "one:v1", 1)
    catalogue.publish(one)
    with catalogue.transaction() as database, ThreadPoolExecutor(1) as reader:
        database.execute("DELETE FROM images")
        assert reader.submit(catalogue.get, "one:v1").result(10) == one
        assert reader.submit(catalogue.list).result(10) == (one,)
        assert reader.submit(catalogue.layer, one.layers[0].digest).result(10) == one.layers[0]
    assert catalogue.list() == ()


def test_of_many_publishing_one_name_one_wins(path: str) -> None:
    outcomes: list[str] = []

    def publish(number: int) -> None:
        catalogue = Catalogue(path)
        try:
            catalogue.publish(image(path, "one:v1", number))
            outcomes.append("won")
        except AlreadyExistsError:
            outcomes.append("lost")
        finally:
            catalogue.close()

    threads = [threading.Thread(target=publish, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["lost"] * 7 + ["won"]
    with contextlib.closing(Catalogue(path)) as catalogue:
        assert len(catalogue.rows("SELECT digest FROM layers")) == 1


def test_a_newer_schema_is_refused_untouched(path: str, catalogue: Catalogue) -> None:
    catalogue.close()
    with sqlite3.connect(path) as database:
        database.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
    database.close()
    with pytest.raises(InternalError, match="newer DSec"):
        Catalogue(path)


def test_an_older_schema_is_taken_step_by_step(
    path: str, catalogue: Catalogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalogue.publish(image(path, "one:v1", 1))
    catalogue.close()
    step = "CREATE TABLE extra (a TEXT) STRICT; INSERT INTO extra VALUES ('made by the step')"
    monkeypatch.setattr(catalogue_module, "MIGRATIONS", (*MIGRATIONS, step))
    migrated = Catalogue(path)
    assert migrated.get("one:v1").ref == "one:v1"
    migrated.close()
    Catalogue(path).close()
    with sqlite3.connect(path) as database:
        assert database.execute("SELECT a FROM extra").fetchall() == [("made by the step",)]
        assert database.execute("PRAGMA user_version").fetchone() == (len(MIGRATIONS) + 1,)
    database.close()


def test_a_step_that_fails_leaves_the_old_schema(
    path: str, catalogue: Catalogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalogue.close()
    monkeypatch.setattr(catalogue_module, "MIGRATIONS", (*MIGRATIONS, "CREATE TABLE a (b TEXT); nonsense"))
    with pytest.raises(InternalError, match="cannot open the catalogue"):
        Catalogue(path)
    monkeypatch.undo()
    Catalogue(path).close()


def test_what_is_no_database_is_said(tmp_path: Path) -> None:
    (tmp_path / "catalogue.db").write_bytes(b"this is no database".ljust(8192, b"."))
    with pytest.raises(InternalError, match="cannot open the catalogue"):
        Catalogue(str(tmp_path / "catalogue.db"))
