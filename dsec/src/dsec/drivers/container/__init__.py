"""The container driver: namespaces, an overlay over EROFS layers, PID 1 of ours outside the reach of what runs inside.

Theory of operation. Three processes: the edge (this code), the fork server (one a node, `aether fork-server`) and
init (`aether init`, PID 1 of each sandbox). The edge takes layers, a control group and an upper, writes a plan as
data (`plan`) and sends it to the fork server (`fork_server`), which makes the sandbox and answers with a pidfd and
the edge's end of a channel to init. From then on the edge and init speak directly (`channel`); the fork server is
asked again only to kill. If the fork server dies its sandboxes go on and keep their channels; a new one is started
for the next create.

What must always hold: whatever `driver` took for a sandbox is given back by its destroy or by the failed create, in
reverse order, and only after PID 1 is dead; a sandbox whose channel ends has ended.
"""
