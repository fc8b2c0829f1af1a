"""The command `dsec`: one file a verb or noun, each a small program over the SDK.

`main` knows the names and one line of help of every command and imports a command's file only when it is called, so
that `dsec --help` costs nothing. A command parses its options, then hands a coroutine to `outcome.execute`, which opens
the client, turns errors into one line and an exit code, and never shows a traceback for what the error tree describes.

    exit code   of `run` and `exec`: the command's own; 128 + n for signal n, 124 for a timeout
                otherwise 0, or `exit_code` of the error's class (`libdsec.protocol.errors`); 2 for wrong usage
    stdout      results only; with --json exactly one JSON document, also for an error
    stderr      progress (on a terminal), warnings, errors
"""
