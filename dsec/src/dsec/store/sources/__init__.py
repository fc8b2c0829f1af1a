"""Where trees come from. A `Source` reads one input once and yields what it finds as entries, parents before children
where the input has them in that order. File contents are streamed: an entry's `content` is valid only until the next
entry is asked for, and nothing is unpacked to disk.

`directory` reads a directory by descriptors, `tar` a tar stream, compressed or not, `layer` a layer that was built;
`memory` has what code made.
"""

from dsec.store.sources.base import Content, Entry, HardLink, Opaque, Source, SourceItem, Whiteout
from dsec.store.sources.directory import DirectorySource
from dsec.store.sources.memory import BytesContent, MemorySource
from dsec.store.sources.tar import TarSource

__all__ = [
    "BytesContent",
    "Content",
    "DirectorySource",
    "Entry",
    "HardLink",
    "MemorySource",
    "Opaque",
    "Source",
    "SourceItem",
    "TarSource",
    "Whiteout",
]
