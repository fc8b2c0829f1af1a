"""What this machine can do: each capability is used once, for real, and taken back.

A version number or a device node promises nothing: kernels are built without features, lockdown and containers refuse
them. So an image is mounted, a limit is run into, a filter is installed, and what happened is the finding. What would
change the process that asks (namespaces, filters) happens in a child that is thrown away (`trials`).

- `findings`  everything, in the order of the design's table; never raises
- `filesystems`, `control`, `limits`, `pausing`, `tools`  the trials by kind
"""

from .run import findings

__all__ = ["findings"]
