"""The bus: where rooms that are strangers to each other meet.

Theory of operation. A room serves a *subject* (`edge.PREFIX`); another room calls it with a `Request` and its own end
of the call, a `Caller`, and gets the answerer's end, an `Answerer`. From then on the two ends speak directly, by
plain method calls: the answerer gives data, events and at last one result or error to the caller; the caller gives
input, credit, events, and perhaps a cancel, to the answerer. In one process a call therefore costs one dictionary
look-up. An implementation over a network carries the same words as the frames of `libdsec.protocol.frames`.

What always holds: exactly one of `Caller.result` and `Caller.error` is called, once, and it is the last word of the
answerer; whatever the caller says later is ignored.
"""

from .calls import Answerer, Caller, Request, encode_error
from .incidents import as_dsec_error
from .local import LocalBus
from .protocol import Bus, Handler
from .unheard import Unheard

__all__ = ["Answerer", "Bus", "Caller", "Handler", "LocalBus", "Request", "Unheard", "as_dsec_error", "encode_error"]
