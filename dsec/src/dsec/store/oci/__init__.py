"""Images of others, as the Open Container Initiative and Docker describe them: read from registries, layouts, archives.

`reference` reads how a place is written, `source` opens it: a registry (`registry`, on `connection` and `login`) or a
layout or archive (`layout`, on `files`). `manifest` and `config` read the documents found there. `convert` makes one
EROFS layer of one OCI layer straight from its compressed stream, and `inherit` gives directories that a layer does not
describe what lower layers say of them. `pull` does all of that for an image: it asks `known` which layers are here
already, shares layers under way with other pulls (`flights`), and leaves network and processor to child processes
(`workers`, and `worker` inside them), which die with it.

Nothing that comes from outside is trusted. Blobs are checked against digest and size while they pass, documents are
bounded before they are parsed, credentials go to nobody but the registry that they are for and the place that this
registry names for tokens. What must always hold: a layer is taken into the store only after its compressed digest and
its uncompressed one were right, and an image's name appears after all its layers.
"""
