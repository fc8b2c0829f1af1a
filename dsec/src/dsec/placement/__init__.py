"""placement: which node takes a sandbox.

Theory of operation. Pure code: `place` takes a request and a view of the fleet and names a node. First every filter
thins out the nodes, in order; then k of those left are drawn and the best ranked of them wins (power of k choices:
nearly as good as looking at all, and concurrent placers do not all run to the same node). `Placement` keeps the view
and overlays it with what it has placed since the view was taken, so that a burst does not overfill a node that looked
empty.
"""

from .filters import FILTERS, Filter
from .place import Placement, place

__all__ = ["FILTERS", "Filter", "Placement", "place"]
