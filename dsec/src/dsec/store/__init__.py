"""Layers: how trees of files become images, and how images reach a node.

A *layer* is two files. The metadata image (`NAME.erofs`) is a whole EROFS file system without file contents; the data
file (`NAME.data`) holds the contents and is the file system's one extra device. A node always has the first and may
fetch the second in chunks of `digest.STORE_CHUNK_SIZE`, each checked against the digest taken while it was written.

`sources` read trees (a directory, a tar stream) as entries, `tree` is their common form, `erofs` writes it, and
`build.build_layer` joins the three. `images` makes a published image of a release (`release`, `apt`), a directory or a
tar. `local` keeps the layers' files and `catalogue` the names; `compose` puts a sandbox's layers together and `mounts`
has the fork server hold them.

The way back: `layer_data` reads contents out of layers, checking each chunk, and `flatten` makes one tree of a stack as
an overlay would. On these stand `merge` (a few layers of many), `diff` (one image against another) and `export` (an
image as a tar, by `sinks`); `history` remembers how layers came to be.

Beyond the node: `remote` is the shared store, where images are published and whence they are resolved; `loading` brings
the data of such layers when it is read; `collect` forgets what can be had again, by what `uses` remembers.

What must always hold: a name is published once and then never changes; a layer that the catalogue knows is whole on the
disk, but for the data of one that lies in the shared store; what is mounted, and each chunk that is read, was checked
against its digest first (`verify`, `loading`).
"""
