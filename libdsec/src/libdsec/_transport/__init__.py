"""How calls of the SDK reach a server: one connection, many calls and streams on it.

    Channel ──► Endpoint ──► Connection ──► Exchange (one a call)
    (reconnects) (where)     (frames, one    Collecting: a request and its whole answer
                              asyncio.Protocol) Streaming: data both ways under credit

Everything runs on the caller's event loop without tasks of its own: frames are read in `data_received`, which hands
each to the exchange of its call; an exchange wakes whoever waits for it. What must always hold:

- A lost connection, and a server that says it is closing, are waited out by the calls themselves (`outage`), within
  their patience; what is said again is said as it was.
- A call that was not written when the connection was lost is `UnavailableError` (it surely did not run), one that was
  is `OutcomeUnknownError`. So nothing is written while the socket is full: frames wait in our own outbox, and what is
  still there at a loss was never sent.
- On each stream of a call either side has at most WINDOW unconsumed bytes in flight.
- A call that nobody waits for any more is cancelled at the server, and its remaining frames are taken and dropped, so
  that the server never waits for credit on its behalf.
"""
