"""What kcache raises, and the two outcomes that are not errors.

::

    KcacheError
    ├─ ConfigError      a setting cannot be used; names it and where it came from
    ├─ StoreError       the store cannot be opened, is not ours, or has no room
    │  └─ NewerStore    the store was written by a newer kcache; it is left alone
    ├─ Damaged          one entry's bytes are not what was written; carries a reason
    │  └─ Refused       one entry is whole, but not tagged with the signing key in use
    ├─ NotFound         no entry, or more than one, under the key that was asked for
    ├─ Opaque           a name that a program depends on could not be followed
    └─ ShapeError       torch or Triton does not look as a seam expects

None of these reaches a program that uses torch.compile unless `KCACHE_STRICT=1`:
each becomes a counted reason, one warning and stock behaviour.
"""

from __future__ import annotations

import errno


class KcacheError(Exception):
    """Base of everything kcache raises on purpose."""


class ConfigError(KcacheError):
    """A setting cannot be used. The message names the setting, its value and its origin."""


class StoreError(KcacheError):
    """The store cannot be opened or written. The message says what to do.

    `reason` is a word or two to count it under: `busy`, `disk-full`, `read-only`; without one, the type's name.
    """

    def __init__(self, message: str, *, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason or type(self).__name__


class NewerStore(StoreError):
    """The store's format is newer than this kcache; nothing in it is touched."""


class Damaged(KcacheError):
    """An entry's bytes are not those that were written.

    `reason` is one of the `DAMAGE_*` names below; it is counted, the entry is dropped,
    and the caller sees a miss.
    """

    outcome = "damaged"
    """What it is counted as."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason


class Refused(Damaged):
    """An entry was not made with the signing key in use. Dropped and counted like damage, as `refused`."""

    outcome = "refused"


DAMAGE_TRUNCATED = "truncated"
DAMAGE_BAD_MAGIC = "bad-magic"
DAMAGE_BAD_CHECKSUM = "bad-checksum"
DAMAGE_WRONG_KEY = "wrong-key"
DAMAGE_MISSING_BLOB = "missing-blob"
DAMAGE_UNREADABLE = "unreadable"
REFUSED_UNTAGGED = "untagged"
REFUSED_WRONG_TAG = "wrong-tag"


class Opaque(KcacheError):
    """A dependency could not be followed, so the layer is bypassed.

    `where` is the function in which the name stands and `name` the name as written there.
    """

    def __init__(self, where: str, name: str, why: str) -> None:
        super().__init__(f"{where}: {name}: {why}")
        self.where = where
        self.name = name
        self.why = why


class NotFound(KcacheError):
    """No entry stands under the key that was asked for, or more than one. The message says which."""


class ShapeError(KcacheError):
    """A seam's target is missing or has another signature in the torch or Triton at hand."""


REASON_OF_ERRNO = {
    errno.ENOSPC: "disk-full",
    errno.EDQUOT: "quota",
    errno.EFBIG: "file-size-limit",
    errno.EROFS: "read-only",
    errno.EACCES: "not-permitted",
    errno.EPERM: "not-permitted",
    errno.ENOMEM: "no-memory",
}
"""What the system refused, in the words under which it is counted."""


def reason_of(error: BaseException) -> str:
    """What to count `error` under: its own reason, else the name of its type."""
    return getattr(error, "reason", "") or type(error).__name__
