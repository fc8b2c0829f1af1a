"""Programs that run inside: one makes a tree of everything a file system can hold, one describes what is there."""

MAKE = r"""
import os, struct
def write(path, data=b"x"):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(data)
top = b"/srv/t"
os.makedirs(top)
for uid, gid in ((0, 0), (1, 2), (1000, 1000), (65535, 65535)):
    write(top + b"/owned/%d" % uid)
    os.chown(top + b"/owned/%d" % uid, uid, gid)
for mode in (0o4755, 0o2755, 0o1777, 0o000, 0o6711):
    write(top + b"/modes/%o" % mode)
    os.chmod(top + b"/modes/%o" % mode, mode)
write(top + b"/able")
os.setxattr(top + b"/able", "security.capability", struct.pack("<IIIII", 0x02000001, 1 << 10, 0, 0, 0))
write(top + b"/shared")
acl = struct.pack("<I", 2) + b"".join(
    struct.pack("<HHI", *entry)
    for entry in ((1, 6, 0xFFFFFFFF), (2, 5, 1234), (4, 4, 0xFFFFFFFF), (16, 5, 0xFFFFFFFF), (32, 0, 0xFFFFFFFF))
)
os.setxattr(top + b"/shared", "system.posix_acl_access", acl)
write(top + b"/noted")
os.setxattr(top + b"/noted", "user.note", b"\0any\xff")
write(top + b"/linked/first", b"many names")
for number in range(200):
    os.makedirs(top + b"/linked/%d" % (number % 7), exist_ok=True)
    os.link(top + b"/linked/first", top + b"/linked/%d/%d" % (number % 7, number))
os.symlink(b"/nowhere/\xff", top + b"/dangling")
os.symlink(b"/etc", top + b"/outside")
os.mkfifo(top + b"/fifo")
with open(top + b"/sparse", "wb") as file:
    file.seek(3 << 30)
    file.write(b"end")
    file.truncate(5 << 30)
for name in (b"\xff\xfe", b"a\nb", b" ", b"n" * 255, b".wh.odd", "\u00e9".encode()):
    write(top + b"/names/" + name)
at = top + b"/" + b"/".join([b"d" * 200] * 19)
os.makedirs(at)
write(at + b"/deep")
# what the image has: removed, changed, made something else
os.remove(b"/etc/issue")
os.chmod(b"/etc/shells", 0o600)
with open(b"/etc/profile", "ab") as file:
    file.write(b"# more\n")
import shutil
shutil.rmtree(b"/usr/share/doc")
os.mkdir(b"/usr/share/doc")
write(b"/usr/share/doc/new")
shutil.rmtree(b"/usr/share/locale")
write(b"/usr/share/locale", b"no directory")
os.remove(b"/etc/debian_version")
write(b"/etc/debian_version/x")
shutil.rmtree(b"/usr/share/man")
# this is data: no overlay of ours reads it
os.mkdir(b"/usr/share/misc/mine") if os.path.isdir(b"/usr/share/misc") else None
os.setxattr(b"/usr/share/perl5" if os.path.isdir(b"/usr/share/perl5") else b"/usr/share", "user.overlay.opaque", b"y")
def refused(attempt):
    try:
        attempt()
    except PermissionError:
        return
    raise SystemExit("a sandbox can speak to its overlay")
refused(lambda: os.mknod(top + b"/whiteout", 0o020600, 0))
refused(lambda: os.setxattr(top, "trusted.overlay.opaque", b"y"))
refused(lambda: os.setxattr(top + b"/able", "trusted.overlay.redirect", b"/etc/shadow"))
write(top + b"/no-whiteout", b"")
os.setxattr(top + b"/no-whiteout", "user.overlay.whiteout", b"")
"""

DESCRIBE = r"""
import hashlib, os, stat, sys
lines = []
def look(path):
    status = os.lstat(path)
    what = [path, oct(status.st_mode), status.st_uid, status.st_gid, status.st_mtime_ns]
    try:
        names = sorted(os.listxattr(path, follow_symlinks=False))
        what.append([(name, os.getxattr(path, name, follow_symlinks=False)) for name in names])
    except OSError as error:
        what.append(error.errno)
    if stat.S_ISREG(status.st_mode):
        what += [status.st_size, status.st_nlink]
        if status.st_size < 1 << 20 and not path.startswith(b"/usr/lib"):
            with open(path, "rb") as file:
                what.append(hashlib.sha256(file.read()).hexdigest())
        elif path.endswith(b"/sparse"):
            with open(path, "rb") as file:
                file.seek(3 << 30)
                what.append(file.read(4096).strip(b"\0"))
    elif stat.S_ISLNK(status.st_mode):
        what.append(os.readlink(path))
    lines.append(repr(what))
    if stat.S_ISDIR(status.st_mode):
        for name in sorted(os.listdir(path)):
            look(path.rstrip(b"/") + b"/" + name)
sys.setrecursionlimit(10000)
for top in (b"/srv", b"/etc", b"/root", b"/home", b"/usr/share", b"/var"):
    look(top)
sys.stdout.write("\n".join(lines))
"""

UNPACK = r"""
import os, sys
os.makedirs("/srv/unpacked")
print("begun", flush=True)
for number in range(int(sys.argv[1])):
    with open(f"/srv/unpacked/{number:06}", "wb") as file:
        for _ in range(4):
            file.write(b"%06d" % number * 500)
print("done", flush=True)
"""
"""As an archiver does: one file after the other, each written in several pieces."""
