"""iam: who asks, and what they may.

Theory of operation. The apiserver hands over what the kernel says of a peer (`Peer`); `Authority.authenticate` names
a principal or refuses; `Principal.may` answers whether it holds a permission. On one node there are two principals
worth the name: root and the user that runs the server, both administrators; everybody else is refused. The quota hook
is asked at each create from the first day, so that a quota can come without a new place to ask.
"""

from .principals import Authority, Peer, Permission, Principal
from .quota import QuotaHook, no_quota

__all__ = ["Authority", "Peer", "Permission", "Principal", "QuotaHook", "no_quota"]
