"""A kernel's text: its canonical form and the names it takes from outside.

`analyse` is a pure function of the text, so its result is remembered by the text's digest,
in the process and, where `MEMO` is set, beyond it.

The canonical form has no comments, docstrings, positions, decorators, annotations of
parameters or default values (the last two are read from the live function). Locals are
numbered `%0`, `%1`, … in order of appearance; parameters keep their names, since launches
and autotuners name them. What comes from outside is `$0`, `$1`, …: each stands for a
maximal attribute chain `root.a.b`, listed in `refs`. No identifier contains `%` or `$`.
"""

from __future__ import annotations

import ast
import json
import sys
from typing import Any, NamedTuple, Protocol

from kcache.digest import Digest
from kcache.scope import Ref, Scope, function_of

VERSION = f"source 2 {sys.version_info[0]}.{sys.version_info[1]}"
"""Named in the digest of each remembered text: `ast.unparse` differs between Python versions."""


class Memo(Protocol):
    """Where results may be kept between processes. Failures must not raise."""

    def get(self, digest: Digest) -> bytes | None:
        """What was put under `digest`, or None."""

    def put(self, digest: Digest, data: bytes) -> None:
        """Keep `data` under `digest`."""


MEMO: Memo | None = None


class Text(NamedTuple):
    """Facts of a text. `asserts`: it holds an `assert` statement."""

    name: str
    body: str
    refs: tuple[Ref, ...]
    asserts: bool = False


_known: dict[Digest, Text] = {}


def analyse(text: str) -> Text:
    """Facts of the text of one function. Raises `SyntaxError` if it is not one `def`."""
    return remembered(f"{VERSION}\n{text}".encode(), lambda: _analyse(text))


def remembered(content: bytes, make: Any) -> Text:
    """`make()`, or what an earlier call made for the same content, here or in `MEMO`."""
    digest = Digest.of(content)
    found = _known.get(digest)
    if found is None:
        data = MEMO.get(digest) if MEMO is not None else None
        found = _load(data) if data is not None else None
        if found is None:
            found = make()
            if MEMO is not None:
                MEMO.put(digest, _dump(found))
        _known[digest] = found
    return found


def _dump(text: Text) -> bytes:
    return json.dumps(text).encode()


def _load(data: bytes) -> Text | None:
    try:
        name, body, refs, asserts = json.loads(data)
        return Text(name, body, tuple([Ref(root, tuple(attrs), soft) for root, attrs, soft in refs]), asserts)
    except (ValueError, TypeError):
        return None


def _analyse(text: str) -> Text:
    function = function_of(text)
    scope = Scope(function)
    scope.root(function)
    try:
        body = ast.unparse(function)
    except (ValueError, RecursionError):  # a backslash in an f-string's expression, before 3.12
        body = ast.dump(function)
    return Text(scope.name, body, tuple(scope.refs), ast.Assert in scope.kinds)
