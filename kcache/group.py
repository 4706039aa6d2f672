"""A group of artifacts: the files of one compile of Triton's, as one value of the store."""

from __future__ import annotations

import base64
import json
import os

from kcache.digest import Key, Part


def folder(digest: str) -> str:
    """The name of the folder in which Triton keeps what it asks for by the hash `digest`, 64 hexadecimal digits."""
    return base64.b32encode(bytes.fromhex(digest)).decode().rstrip("=")


def key_of(folder: str, filename: str) -> Key:
    """The store's key for the group with the file `filename` in `folder` of Triton's cache."""
    return Key.of(parts_of(folder, filename))


def parts_of(folder: str, filename: str) -> list[Part]:
    """The parts of that key."""
    return [Part.of("layer", "triton"), Part.of("hash", folder), Part.of("file", filename, readable=True)]


def pack(members: dict[str, bytes]) -> bytes:
    """Files as one value: a JSON line of names and lengths, then their bytes in that order."""
    head = json.dumps([[name, len(data)] for name, data in members.items()]).encode()
    return head + b"\n" + b"".join(members.values())


def unpack(value: bytes) -> dict[str, bytes]:
    """Inverse of `pack`. Raises `ValueError` where lengths do not add up."""
    head, _, body = value.partition(b"\n")
    members, at = {}, 0
    for name, length in json.loads(head):
        if os.path.basename(name) != name:
            raise ValueError(f"{name!r} is not a plain file name")
        members[name] = body[at : at + length]
        at += length
    if at != len(body):
        raise ValueError(f"{len(body)} bytes where {at} are named")
    return members
