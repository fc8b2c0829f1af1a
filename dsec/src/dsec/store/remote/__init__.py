"""The shared store: published images as objects that every node of a site can read.

    names/NAME/_tags/TAG             a manifest: which layers an image has
    layers/<64 hex>/layer            a layer's table: its facts, its chunks' digests, where each chunk lies
    layers/<64 hex>/metadata.zst     its metadata image
    layers/<64 hex>/data             its data file, raw; only in a directory, and only where that is asked for
    packs/<2 hex>/<64 hex>           chunks, one behind the other

`objects` is the only file that speaks to a store: it bounds how long a request may take, how often it is tried again
and how many are under way, and turns every failure into an error of ours, as `answers` reads it; `opening` makes one of
a URL. `table`, `manifest` and `chunks` are the formats, as pure functions; docs/layers.md has them as bytes. `publish`
writes an image (`sending` its layers), `resolve` brings one into the node's catalogue, `source` fetches chunks,
`browse` lists. `known` is what the node's catalogue remembers of the store, `beside` what lies by a layer that came
from one. `shared` is all of this for the rooms around.

What must always hold: an object never changes once it has its name; a manifest is written last, so that a name stands
for nothing that is not there; nothing of a store is believed before it was held against a digest, down from the layer's
own name, and only a manifest's word is taken for which layers an image has.
"""
