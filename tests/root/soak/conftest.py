"""The soak uses the edge's node process: a server of its own, and all that can be seen of it from outside."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "edge"))
