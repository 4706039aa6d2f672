"""What a directory lies on: whether it is shared over a network, where LMDB's locks mean nothing.

Decided by the file system's type as the kernel names it, never by the path's spelling. WSL's
view of Windows drives (`drvfs`, `9p`) counts as a network too.
"""

from __future__ import annotations

import os
from pathlib import Path

MOUNTS = Path("/proc/self/mountinfo")

NETWORK = {
    *("9p", "acfs", "afs", "beegfs", "ceph", "cifs", "coda", "davfs", "drvfs", "gfs2", "glusterfs", "gpfs", "lustre"),
    *("mmfs", "ncpfs", "nfs", "nfs4", "ocfs2", "orangefs", "panfs", "pvfs2", "quobyte", "smb2", "smb3", "smbfs"),
    *("wekafs",),
}
"""Types that several machines may have mounted at once."""
_NETWORK_FUSE = {
    *("beegfs", "ceph", "davfs2", "gcsfuse", "glusterfs", "juicefs", "lizardfs", "mfs", "quobyte", "rclone", "s3fs"),
    *("seaweedfs", "sshfs"),
}
"""The same for file systems in user space, which the kernel names `fuse.<type>`."""


def type_of(path: Path, mounts: Path = MOUNTS) -> str:
    """Type of the file system that holds `path`, or would; "" if the kernel does not say.

    `mounts` is a table in the form of /proc/self/mountinfo. Links are followed; of the mounts
    on the way to `path` the deepest counts, and of several on one directory the last.
    """
    real = os.path.realpath(path)
    found, depth = "", -1
    try:
        lines = mounts.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return ""
    for line in lines:
        before, _, after = line.partition(" - ")
        fields, rest = before.split(" "), after.split(" ")
        if len(fields) < 5:
            continue
        point = _unescape(fields[4])
        if _below(real, point) and len(point) >= depth:
            found, depth = rest[0], len(point)
    return found


def is_network(kind: str) -> bool:
    """Whether a file system of this type may be mounted by several machines at once."""
    family, _, name = kind.partition(".")
    return kind in NETWORK or (family in ("fuse", "fuseblk") and name in _NETWORK_FUSE | NETWORK)


def _below(path: str, point: str) -> bool:
    return path == point or path.startswith(point.rstrip("/") + "/")


def _unescape(field: str) -> str:
    """The kernel writes blanks and backslashes in paths as three octal digits."""
    head, *rest = field.split("\\")
    return head + "".join(chr(int(part[:3], 8)) + part[3:] for part in rest)
