"""Data of published layers on demand: a sandbox starts when its metadata is here, its data comes when it is read.

Three ways, behind one interface (`base.LayerLoader`), chosen by what the store and the kernel allow: *direct* (the data
file of a mounted file system is the device), *pre-content* (a sparse file is the device, and the kernel asks before
any of it is read) and *prefetch* (all of it, then a whole layer).
"""
