"""The vocabulary: every word that crosses a boundary between two DSec processes.

Values only (msgspec structs), no I/O, no clock, no randomness beyond `ids`. Everything above speaks in these terms,
and the Rust half (`aether/src/wire.rs`) speaks the same bytes; `docs/wire.md` is the contract in prose and
`tests/golden/` holds it together.

- `ids`        the identifiers of edges, sandboxes, sessions, calls
- `spec`       what a caller asks for when it creates a sandbox
- `lifecycle`  the one transition table of a sandbox
- `exec`       commands, sessions and what they end as
- `files`      file operations and their entries
- `environment` image references, layers and their kinds
- `steps`      the command log: steps, tracks, what a call carries of them
- `jobs`       rollouts, jobs and their leases
- `nodes`      what a node offers and uses
- `errors`     the one error tree
- `frames`     the one framing of every byte stream
- `calls`      the calls of the service, by name, with their request and answer types
"""
