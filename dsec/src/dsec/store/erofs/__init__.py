"""EROFS images of a tree, uncompressed, with the contents of files on a device of their own.

Two objects share the work. `data.DataFile` takes contents as they stream by, packs them into chunks of the store and
answers where each file's blocks went; `chunks.ChunkWriter` hashes the chunks and writes them in a second thread, and in
the caller's where that would wait. `metadata.unsealed_metadata` runs when every node has its runs: it lays out inodes,
attributes and directories; `seal` puts in what depends on the contents, once those are hashed. The same tree with the
same contents in the same order gives the same bytes, always: no clock, no random number, no order of a hash table takes
part.

The image in one picture, in blocks of 4 KiB:

    metadata image   block 0: superblock at 1024, device table, the root's inode from 1280 on
                     then inodes in slots of 32 bytes, each followed by its attributes and by its chunk indexes,
                     its link target or the end of its directory
                     then whole directory blocks and long link targets, then attributes that many inodes share
    data file        device 1: blocks of files; large files begin on a chunk of the store, small ones fill chunks up

The format is that of the Linux kernel's documentation of EROFS (Documentation/filesystems/erofs.rst and the structures
it refers to). Images need a kernel with chunk-based files and a device table (Linux 5.16); mounting them straight from
files needs 6.12.
"""
