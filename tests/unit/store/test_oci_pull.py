"""Pulling images into a store: what is fetched, shared and merged, and what is left when it fails."""

from __future__ import annotations

import asyncio
import io
import json
import os
import select
import socket
import subprocess
import sys
import tarfile
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from lying_registry import Answer, Asked, Lying, served
from oci_layouts import config_of, digest, directory, file, manifest_of, put, squeezed, tar, write_layout

from dsec.edge.blocking import in_thread
from dsec.store import origins
from dsec.store.flatten import Flattened, walk
from dsec.store.history import history, known_blob
from dsec.store.local import LocalStore
from dsec.store.oci.known import below
from dsec.store.oci.manifest import OCI_MANIFEST
from dsec.store.oci.messages import Resolve, Start
from dsec.store.oci.pull import Puller
from dsec.store.oci.workers import Crew, Worker
from libdsec.protocol.environment import BuildProgress, ImageInfo
from libdsec.protocol.errors import (
    AlreadyExistsError,
    DSecError,
    ImageNotFoundError,
    IntegrityError,
    InvalidArgumentError,
    NotFoundError,
    UnavailableError,
)
from libdsec.protocol.images import ImagePullRequest

LAYERS = [tar(directory(b"d"), file(b"d/%d" % number, b"%d" % number * 5000)) for number in range(4)]


def nothing(_: BuildProgress) -> None:
    pass


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LocalStore]:
    store = LocalStore(str(tmp_path / "state"))
    yield store
    assert os.listdir(tmp_path / "state" / "building") == []
    named = {layer.digest[7:] for image in store.catalogue.list() for layer in image.layers}
    assert set(os.listdir(store.layers_dir)) == named
    store.close()
    assert children() == []


@pytest.fixture
def puller(store: LocalStore) -> Puller:
    return Puller(store)


@pytest.fixture
def lying() -> Iterator[Lying]:
    with served() as lying:
        yield lying


def children(parent: int | None = None) -> list[str]:
    """Of this process, those that convert."""
    listed = subprocess.run(
        ["ps", "--ppid", str(parent or os.getpid()), "-o", "pid=,args="], capture_output=True, text=True, check=False
    ).stdout
    return [line.split(maxsplit=1)[0] for line in listed.splitlines() if "dsec.store.oci.worker" in line]


def publish(lying: Lying, tmp_path: Path, name: str, layers: list[bytes], **more: Any) -> None:
    """An image in the registry, at tag v1."""
    body = manifest_of(tmp_path, config_of(layers, **more), [squeezed(layer) for layer in layers])
    lying.has(f"/v2/{name}/manifests/v1", body, OCI_MANIFEST)
    for blob in (tmp_path / "blobs" / "sha256").iterdir():
        lying.has(f"/v2/{name}/blobs/sha256:{blob.name}", blob.read_bytes())


def pull(
    puller: Puller, source: str, ref: str = "", progress: Callable[[BuildProgress], None] = nothing, **options: Any
) -> ImageInfo:
    return puller.pull(ImagePullRequest(source, ref, plain_http=True, **options), progress)


def fetched(lying: Lying) -> list[str]:
    """Layers that were asked for, once each time."""
    names = {f"sha256:{digest(squeezed(layer))[7:]}": str(number) for number, layer in enumerate(LAYERS)}
    return [names[path.rpartition("/")[2]] for path in lying.paths() if path.rpartition("/")[2] in names]


def test_an_image_of_a_registry(puller: Puller, store: LocalStore, lying: Lying, tmp_path: Path) -> None:
    steps = [{"created_by": "ADD base"}, {"created_by": "ENV A=b", "empty_layer": True}, {"created_by": "RUN it"}]
    publish(lying, tmp_path, "team/app", LAYERS[:2], defaults={"Env": ["A=b"]}, history=steps)
    told: list[BuildProgress] = []
    info = pull(puller, f"docker://{lying.host}/team/app:v1", progress=told.append, merge_bytes=0)
    assert info == store.catalogue.get("team/app:v1").info()
    assert info.config.env == {"A": "b"}
    assert len(info.layers) == 2
    total = sum(len(squeezed(layer)) for layer in LAYERS[:2])
    assert max(news.bytes_done for news in told) == total
    assert {news.bytes_total for news in told if news.bytes_done} == {total}
    words = [entry.made_by for entry in history(store.catalogue, "team/app:v1").entries]
    assert [how.rpartition(": ")[2] for how in words] == ["ADD base", "RUN it"]
    upper = info.layers[1].digest
    beneath = below("base", [digest(LAYERS[0])])
    (origin,) = origins.find(store.catalogue, "team/app:v1", upper, lying.host, beneath)
    assert [blob.digest for blob in origin.blobs] == [digest(squeezed(LAYERS[1]))]
    assert known_blob(store.catalogue, upper) is None


def test_only_what_was_read_is_said_to_lie_there(
    puller: Puller, store: LocalStore, lying: Lying, tmp_path: Path
) -> None:
    """A manifest may claim any blob for a layer that is here already."""
    publish(lying, tmp_path, "base", LAYERS[:1])
    body = manifest_of(tmp_path, config_of(LAYERS[:1]), [squeezed(b"something else")])
    lying.has("/v2/evil/manifests/v1", body, OCI_MANIFEST)
    for blob in (tmp_path / "blobs" / "sha256").iterdir():
        lying.has(f"/v2/evil/blobs/sha256:{blob.name}", blob.read_bytes())
    (layer,) = pull(puller, f"docker://{lying.host}/base:v1").layers
    assert pull(puller, f"docker://{lying.host}/evil:v1").layers == (layer,)
    assert pull(puller, f"docker://{lying.host}/base:v1", "again:v1").layers == (layer,)
    for ref in ("base:v1", "again:v1"):
        (origin,) = origins.find(store.catalogue, ref, layer.digest, lying.host, b"")
        assert (origin.name, [blob.digest for blob in origin.blobs]) == ("base", [digest(squeezed(LAYERS[0]))])
    assert origins.find(store.catalogue, "evil:v1", layer.digest, lying.host, b"") == []


def test_what_is_here_is_not_fetched_again(puller: Puller, store: LocalStore, lying: Lying, tmp_path: Path) -> None:
    publish(lying, tmp_path, "base", LAYERS[:2])
    publish(lying, tmp_path, "more", LAYERS[:3])
    publish(lying, tmp_path, "other", [LAYERS[0], LAYERS[3]])
    base = pull(puller, f"docker://{lying.host}/base:v1", merge_bytes=0)
    assert sorted(fetched(lying)) == ["0", "1"]
    lying.asked.clear()
    more = pull(puller, f"docker://{lying.host}/more:v1", merge_bytes=0)
    assert fetched(lying) == ["2"]
    assert more.layers[:2] == base.layers
    lying.asked.clear()
    store.remove("base:v1", lambda _: False)
    store.remove("more:v1", lambda _: False)
    pull(puller, f"docker://{lying.host}/other:v1", merge_bytes=0)
    assert sorted(fetched(lying)) == ["0", "3"]


def test_merged_layers_are_known_too(puller: Puller, store: LocalStore, lying: Lying, tmp_path: Path) -> None:
    publish(lying, tmp_path, "base", LAYERS[:2])
    publish(lying, tmp_path, "more", LAYERS[:3])
    base = pull(puller, f"docker://{lying.host}/base:v1")
    assert len(base.layers) == 1
    lying.asked.clear()
    more = pull(puller, f"docker://{lying.host}/more:v1")
    assert fetched(lying) == ["2"]
    assert more.layers[:1] == base.layers
    assert len(more.layers) == 2
    # of a workspace it is not known what lies below, nor may every layer be one where none is to be merged
    lying.asked.clear()
    pull(puller, f"docker://{lying.host}/more:v1", "w:1", kind="workspace")
    assert sorted(fetched(lying)) == ["0", "1"]
    assert len(pull(puller, f"docker://{lying.host}/more:v1", "s:1", merge_bytes=0).layers) == 3


def test_two_pulls_at_once_fetch_a_layer_once(store: LocalStore, lying: Lying, tmp_path: Path) -> None:
    publish(lying, tmp_path, "base", LAYERS[:3])
    publish(lying, tmp_path, "more", LAYERS)
    puller = Puller(store)
    found: dict[str, Any] = {}

    def run(name: str, ref: str) -> None:
        found[ref] = pull(puller, f"docker://{lying.host}/{name}:v1", ref, merge_bytes=0)

    threads = [threading.Thread(target=run, args=args) for args in (("base", "a:1"), ("base", "a:2"), ("more", "b:1"))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(fetched(lying)) == ["0", "1", "2", "3"]
    assert found["a:1"].layers == found["a:2"].layers == found["b:1"].layers[:3]


def test_a_pull_that_is_given_up_leaves_its_layers_to_the_other(
    store: LocalStore, lying: Lying, tmp_path: Path
) -> None:
    class StopError(Exception):
        pass

    publish(lying, tmp_path, "base", LAYERS)
    puller = Puller(store)
    waiting = threading.Event()

    def give_up(news: BuildProgress) -> None:
        if news.bytes_total:
            waiting.wait(30)
            raise StopError

    def go_on(news: BuildProgress) -> None:
        if news.bytes_total:
            waiting.set()

    failures: list[BaseException] = []

    def first() -> None:
        try:
            pull(puller, f"docker://{lying.host}/base:v1", "a:1", give_up)
        except StopError as error:
            failures.append(error)

    thread = threading.Thread(target=first)
    thread.start()
    assert len(pull(puller, f"docker://{lying.host}/base:v1", "a:2", go_on, merge_bytes=0).layers) == 4
    waiting.set()
    thread.join()
    assert len(failures) == 1
    with pytest.raises(ImageNotFoundError):
        store.catalogue.get("a:1")


def test_a_child_that_dies_ends_the_pull(puller: Puller, lying: Lying, tmp_path: Path) -> None:
    publish(lying, tmp_path, "base", LAYERS)

    def kill(news: BuildProgress) -> None:
        if news.bytes_total:
            for child in children():
                os.kill(int(child), 9)

    with pytest.raises(UnavailableError, match="signal 9"):
        pull(puller, f"docker://{lying.host}/base:v1", progress=kill)


def test_names(puller: Puller, store: LocalStore, lying: Lying, tmp_path: Path) -> None:
    publish(lying, tmp_path, "base", LAYERS[:1])
    pull(puller, f"docker://{lying.host}/base:v1")
    lying.asked.clear()
    with pytest.raises(AlreadyExistsError):
        pull(puller, f"docker://{lying.host}/base:v1", "base:v1")
    assert lying.asked == []
    with pytest.raises(AlreadyExistsError):
        pull(puller, f"docker://{lying.host}/base:v1")
    with pytest.raises(InvalidArgumentError, match="NAME:TAG"):
        pull(puller, f"docker://{lying.host}/base:v1", "no tag")
    with pytest.raises(InvalidArgumentError, match="negative"):
        pull(puller, f"docker://{lying.host}/base:v1", "n:1", merge_bytes=-1)
    body = manifest_of(tmp_path, config_of(LAYERS[:1]), [squeezed(LAYERS[0])])
    lying.has(f"/v2/base/manifests/{digest(body)}", body, OCI_MANIFEST)
    with pytest.raises(InvalidArgumentError, match="give one"):
        pull(puller, f"docker://{lying.host}/base@{digest(body)}")


@pytest.mark.parametrize("said", ["by the archive", "by the caller"])
def test_a_name_of_the_build_cache_is_refused(puller: Puller, store: LocalStore, tmp_path: Path, said: str) -> None:
    """Else whoever makes an archive decides what a step has made."""
    name = "build-cache/" + "0" * 64 + ":7"
    archive = tmp_path / "image.tar"
    documents = {"l.tar": LAYERS[0], "c.json": json.dumps(config_of(LAYERS[:1])).encode()}
    manifest = [{"Config": "c.json", "RepoTags": [name], "Layers": ["l.tar"]}]
    with tarfile.open(archive, "w") as target:
        for path, content in {**documents, "manifest.json": json.dumps(manifest).encode()}.items():
            member = tarfile.TarInfo(path)
            member.size = len(content)
            target.addfile(member, io.BytesIO(content))
    source = f"docker-archive:{archive}"
    with pytest.raises(InvalidArgumentError):
        puller.pull(ImagePullRequest(source, name if said == "by the caller" else ""), nothing)
    assert not store.catalogue.list()
    assert puller.pull(ImagePullRequest(source, "app:1"), nothing).ref == "app:1"


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (Answer(200, squeezed(LAYERS[1])), (IntegrityError, UnavailableError)),
        (Answer(404), NotFoundError),
    ],
)
def test_one_layer_that_is_not_to_be_had(
    puller: Puller, store: LocalStore, lying: Lying, tmp_path: Path, answer: Answer, error: type[DSecError]
) -> None:
    publish(lying, tmp_path, "base", LAYERS)
    path = f"/v2/base/blobs/{digest(squeezed(LAYERS[2]))}"
    lying.rules.insert(0, lambda asked: answer if asked.path == path else None)
    with pytest.raises(error):
        pull(puller, f"docker://{lying.host}/base:v1")
    assert store.catalogue.list() == ()


def test_a_config_that_lies_about_its_layers(puller: Puller, store: LocalStore, tmp_path: Path) -> None:
    body = manifest_of(tmp_path, config_of([LAYERS[1]]), [squeezed(LAYERS[0])])
    entry = {"mediaType": OCI_MANIFEST, **put(tmp_path, body)}
    (tmp_path / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [entry]}))
    with pytest.raises(IntegrityError, match="uncompressed"):
        pull(puller, f"oci:{tmp_path}", "x:1")
    assert store.catalogue.list() == ()


def test_empty_layers_and_images(puller: Puller, tmp_path: Path) -> None:
    empty, root = tar(), tar(directory(b"."))
    write_layout(tmp_path / "some", [empty, LAYERS[0], root, bytes(10240), LAYERS[1], empty])
    assert len(pull(puller, f"oci:{tmp_path}/some", "some:1", merge_bytes=0).layers) == 2
    assert len(pull(puller, f"oci:{tmp_path}/some", "some:2").layers) == 2
    write_layout(tmp_path / "none", [empty, root])
    with pytest.raises(InvalidArgumentError, match="no files"):
        pull(puller, f"oci:{tmp_path}/none", "none:1")


_PULLS = """
import sys
from dsec.store.local import LocalStore
from dsec.store.oci.messages import Resolve, Start
from dsec.store.oci.pull import Puller
from dsec.store.oci.workers import Crew, Worker
from libdsec.protocol.images import ImagePullRequest

def told(news):
    if news.bytes_total:
        print("under way", flush=True)

Puller(LocalStore(sys.argv[1])).pull(ImagePullRequest(sys.argv[2], plain_http=True), told)
"""


def test_what_a_killed_server_leaves_is_nothing(lying: Lying, tmp_path: Path) -> None:
    publish(lying, tmp_path / "layout", "base", LAYERS)
    path = f"/v2/base/blobs/{digest(squeezed(LAYERS[2]))}"
    stalled = threading.Event()

    def rule(asked: Asked) -> Answer | None:
        if asked.path == path:
            stalled.wait(30)
        return None

    lying.rules.insert(0, rule)
    state = str(tmp_path / "state")
    command = [sys.executable, "-c", _PULLS, state, f"docker://{lying.host}/base:v1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"under way\n"
        workers = [int(pid) for pid in children(process.pid)]
        assert workers
        ends = [os.pidfd_open(pid) for pid in workers]
        process.kill()
        for end in ends:
            assert select.select([end], [], [], 30)[0]
            os.close(end)
    stalled.set()
    store = LocalStore(state)
    assert os.listdir(f"{state}/building") == os.listdir(store.layers_dir) == []
    lying.rules.pop(0)
    assert len(pull(Puller(store), f"docker://{lying.host}/base:v1", merge_bytes=0).layers) == 4
    store.close()


async def test_a_cancel_ends_a_silent_wait(store: LocalStore) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        host = f"127.0.0.1:{silent.getsockname()[1]}"
        begun = asyncio.Event()
        work = partial(Puller(store).pull, ImagePullRequest(f"docker://{host}/a:v1", plain_http=True))
        task = asyncio.ensure_future(in_thread(work, lambda _: begun.set()))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


@pytest.mark.parametrize("merge_bytes", [0, 1 << 30])
@pytest.mark.parametrize("beside", [[b"middle"], []])
def test_an_opaque_root_hides_all_below(
    store: LocalStore, puller: Puller, tmp_path: Path, merge_bytes: int, beside: list[bytes]
) -> None:
    """An overlay takes no notice of one. It may be all that its layer has."""
    layers = [tar(file(b"low")), tar(file(b".wh..wh..opq"), *map(file, beside)), tar(file(b"high"))]
    write_layout(tmp_path / "layout", layers)
    puller.pull(ImagePullRequest(f"oci:{tmp_path}/layout:v1", "a:1", merge_bytes=merge_bytes), nothing)
    image = store.catalogue.get("a:1")
    assert len(image.layers) == (1 if merge_bytes else 2)
    assert [path for path, _ in walk(Flattened(image.layers).root)] == [b"", b"high", *beside]


def test_a_layer_that_fitted_as_it_was_is_made_anew_over_others(
    store: LocalStore, puller: Puller, tmp_path: Path
) -> None:
    """What it does not describe is like what lies below it, wherever that is."""
    upper = tar(file(b"usr/bin/tool", b"tool"))
    for name, lower in (("first", tar(file(b"x"))), ("second", tar(directory(b"usr", 0o700, uid=7)))):
        write_layout(tmp_path / name, [lower, upper])
        puller.pull(ImagePullRequest(f"oci:{tmp_path}/{name}:v1", f"{name}:1", merge_bytes=0), nothing)
    for ref, wanted in (("first:1", (0o755, 0)), ("second:1", (0o700, 7))):
        tree = dict(walk(Flattened(store.catalogue.get(ref).layers).root))
        assert (tree[b"usr"].mode & 0o777, tree[b"usr"].uid) == wanted


def test_a_child_that_does_not_end_keeps_neither_the_others_nor_their_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    end = Worker.end

    def stuck(worker: Worker) -> None:
        end(worker)
        raise subprocess.TimeoutExpired("child", 10)

    monkeypatch.setattr(Worker, "end", stuck)
    slots = threading.BoundedSemaphore(2)
    with pytest.raises(subprocess.TimeoutExpired), Crew(Start("oci:/nowhere", None, False), slots) as crew:
        assert crew.try_give(Resolve(), worth_another=True) is not crew.try_give(Resolve(), worth_another=True)
    assert children() == []
    assert [slots.acquire(blocking=False) for _ in range(2)] == [True, True]
