"""Data of published layers on demand: a sandbox starts when its metadata is here, its data comes when it is read.

Three ways, behind one interface (`base.LayerLoader`), chosen by what the store and the kernel allow: *direct* (the data
file of a mounted file system is the device), *pre-content* (a sparse file is the device, and the kernel asks before
any of it is read) and *prefetch* (all of it, then a whole layer).

Theory of operation of pre-content. Beside a layer lies `data.erofs`, as long as it will be and with holes where nothing
came yet. It is marked in the node's one fanotify group before it is mounted, so that the kernel holds whoever reads a
range until somebody answers. A thread (`precontent`) takes events. Reads of what is there it lets go on; every other
event it writes down (`pending`) and hands to an event loop of its own (`looping`), where the layer's `filling` has the
chunks of the range fetched (`flights`, in their `turns`) that are not there; each is held against its digest, written
into the file, and only then said to be there (`cache`, `present`). When the range is there the reader goes on; when it
cannot be had the read is an I/O error. Misses fetch their neighbours too (`readahead`), and a later start what an
earlier one read (`trace`), below misses. When all is there the mark goes, and reading costs nothing more. `opened` has
the layers that are being filled, `loader` is what the node sees.

What must always hold:
- No byte is readable before it was held against its digest. What neither `present.map` nor `present.whole` vouches for
  is not there, whatever the data file holds.
- Group and mark exist before the mount, and until the last sandbox on it is gone, whichever process mounted it: what
  an earlier one did is told at the start (`adopt`). The group's descriptor is also held by the fork server: when this
  process dies, readers wait for the next one, which answers what this one had taken.
- Nothing here reads or writes a marked file but through an event's own descriptor, which raises no events: it would
  wait for itself.
- A chunk is asked for once at a time, however many wait for it; every wait has a deadline.
- Data is evicted whole, and only when nobody has it mounted or keeps it (`LocalStore.keeping`): first what vouches for
  it goes, then its name, then itself.
"""
