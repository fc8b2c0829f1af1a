"""A server that builds layers with another chunk size, so that sizes can be compared. Only a bench starts it.

python -m dsec.bench.chunked --chunk-kib 128 --state-dir DIRECTORY --run-dir DIRECTORY
"""

from __future__ import annotations

import argparse

from dsec.store import digest


def _use(size: int) -> None:
    """Before anything else of the store is imported, since that copies the constant. Readers take a layer's own."""
    digest.STORE_CHUNK_SIZE = size
    digest.layer_digest.__kwdefaults__ = {**(digest.layer_digest.__kwdefaults__ or {}), "chunk_size": size}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--chunk-kib", type=int, required=True)
    parser.add_argument("--state-dir", required=True)
    parser.add_argument("--run-dir", required=True)
    asked = parser.parse_args()
    _use(asked.chunk_kib * 1024)

    from dsec.config import load
    from dsec.serve import main

    main(load(state_dir=asked.state_dir, run_dir=asked.run_dir))
