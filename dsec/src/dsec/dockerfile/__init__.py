"""Dockerfiles, built by the platform's own means: each step runs in a sandbox, whose changes become a layer.

Theory of operation. A build is a client like any other and has no rights of its own. The file is *parsed* into stages
of instructions; a stage is *planned*, once the configuration of what it starts from is known, into steps (RUN, COPY, or
only directories to be made), with every variable resolved, and the configuration of its image; steps are *run* one
after another: a sandbox of the image so far, the step in it, `pack_diff` into the next image. What only changes the
configuration (ENV, USER, CMD, ...) makes no layer.

    text ──► lines ──► parse ──► Dockerfile ──► plan (a stage at a time) ──► run ──► image:NAME:TAG
                                                  context: files ──┘

Each image of a step is named by the step's key, `build-cache/KEY:N`: a digest over the layers of the image before, the
step as it was resolved, and for COPY the contents of what is copied. A step whose key has an image is not run again.

What must always hold:
- an instruction, flag or form that is not known is an error that names the line; nothing is left out;
- a step that fails leaves no sandbox and no image, and the images of the steps before it;
- what is copied is what the key was made of, or the build ends.

- `lines`     text to logical lines: comments, continuation, directives
- `words`     quotes, escapes and variables within a line
- `parse`     lines to `instructions`
- `patterns`  names with wildcards, and .dockerignore; `globs` matches them in bounded time
- `context`   the files of the caller's directory that COPY may take; `beneath` reaches them through no link
- `plan`      stages to steps and keys; pure
- `run`       steps in sandboxes
- `copying`   COPY in a sandbox; `retar` rewrites owners in a tar on its way from one stage to another
"""
