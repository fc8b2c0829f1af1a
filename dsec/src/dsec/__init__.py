"""DSec: the platform. Each sub-package is a room of ARCHITECTURE.md; a room imports only rooms below it."""
