"""The node's layers, wherever their data lies: loader, mounts, and how they are joined."""

from __future__ import annotations

import os
from typing import NoReturn

from dsec.config import NodeConfig
from dsec.store.loading.loader import Loader
from dsec.store.local import LocalStore
from dsec.store.mounts import Drop, Hold, LayerMounts
from dsec.store.records import LayerRecord
from dsec.store.remote.shared import SharedStore
from libdsec.protocol.errors import UnavailableError

PENDING_NAME = "reads.pending"
"""In the run directory: of no use after a reboot."""


class _NoStore:
    """`Sources` of a node that has no shared store."""

    def open_source(self, layer: LayerRecord) -> NoReturn:
        raise UnavailableError(
            f"cannot have the data of layer {layer.digest}: it lies in a shared store, and this node has none; start "
            "its server with DSEC_STORE=URL",
            digest=layer.digest,
        )

    def location(self, layer: LayerRecord) -> str | None:
        return None


def make_loader(config: NodeConfig, store: LocalStore, shared: SharedStore | None) -> Loader:
    return Loader(
        sources=shared or _NoStore(),
        locate=store.catalogue.layer,
        unless_kept=store.unless_kept,
        pending_path=os.path.join(config.run_dir, PENDING_NAME),
        graves=store.graves_dir,
        way=config.data_source,
    )


def make_mounts(hold: Hold, drop: Drop, store: LocalStore, loader: Loader) -> LayerMounts:
    return LayerMounts(
        hold,
        drop,
        store.catalogue.layer,
        mount=loader.mount,
        adopted=loader.adopt,
        unmounted=loader.unmounted,
    )
