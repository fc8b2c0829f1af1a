"""Sandboxes that become images: what a sandbox has written over its layers, as a layer of its own.

The upper of a sandbox is read where it lies, at one moment (`dsec.drivers.base.Captured`), so the cost is that of the
change, not of the image. On the way it is turned into what it means: whiteouts and opaque directories become the
layer's own, ids are shifted back, other marks of overlayfs dropped (`overlay`), and what is no use or harm elsewhere is
left out by rules (`rules` is the platform's table, `matching` their meaning, `residue` what is told of it). `upper` is
all that as a source for `build_layer`; `lower` answers what lay below, path by path; `parts` is what the new image has
beside the layer; `record` lets a step that is said again find what it published; `pack` does it. `changes` tells what
changed without packing it.

An upper is hostile: every name, size, depth, link and attribute in it is bounded here or in `tree`, nothing in it is
opened but directories and regular files, and no link is followed. What must hold: an image is published only if all of
the upper was read while nothing could change it.
"""
