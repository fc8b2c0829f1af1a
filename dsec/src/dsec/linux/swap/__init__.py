"""Swap areas of this node's own: zram (compressed, in memory) and a file on a disk; made, told of, taken away.

Pausing gives anonymous memory back only where there is somewhere to put it. zram is fast and takes what compresses; a
file takes everything. Areas that were here before are never touched.

Each area that we make has a UUID of ours in its header. `Setup` writes down what it is about to make, with the UUID,
before it makes it, in `swap.json` of the state directory: so whatever a crash leaves can be found and taken away, and
nothing that is somebody else's is: what lacks the UUID (or, of a device not yet written to, is not blank) is left
alone. zram does not survive a reboot; a file does, and is used again by the next `make`.

- `areas`   what the kernel swaps on; the header; swapon and swapoff
- `zram`    one device: choosing, configuring, resetting
- `file`    one file: making it, whole and private; removing it
- `setup`   both of them and the record: make, undo
"""

from .areas import Area, areas_in_use
from .setup import Made, Setup, State

__all__ = ["Area", "Made", "Setup", "State", "areas_in_use"]
