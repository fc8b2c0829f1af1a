"""Where trees go to. A sink takes what a `Source` yields and writes it as a stream, in bounded memory.

`tar` writes POSIX tars: whole trees, and layers of container images with their whiteouts.
"""
