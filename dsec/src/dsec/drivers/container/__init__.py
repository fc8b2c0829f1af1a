"""The container driver: namespaces, an overlay over EROFS layers, PID 1 of ours outside the reach of what runs inside.

Theory of operation. Three processes: the edge (this code), the fork server (one a node, `aether fork-server`) and
init (`aether init`, PID 1 of each sandbox). The edge takes layers, a control group and an upper, writes a plan as
data (`plan`) and sends it to the fork server (`fork_server`), which makes the sandbox and answers with a pidfd and
the edge's end of a channel to init. From then on the edge and init speak directly (`channel`); the fork server is
asked again only to kill.

Any of the three may die alone. If the fork server does, its sandboxes go on and keep their channels; a new one is
started at once and given a duplicate of each channel. If the edge does, the fork server holds the channels, and the
next edge takes each sandbox over by what `instance` gave to be written down: it says hello to init, which names the
calls that it knows. If both do, no one holds a channel and every init ends.

A paused sandbox is frozen, its timers are held, and nothing is said on its channel (`standstill`).

What must always hold: whatever `driver` took for a sandbox is given back by its destroy, by the failed create or
adoption, or by the sweep of a later edge, in reverse order, and only after PID 1 is dead; a sandbox whose channel ends
has ended; no edge uses a call's number again.
"""
