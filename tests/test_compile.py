"""`kcache compile`: kernels of a store whose binaries are gone, built again for a target that is not here."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
triton = pytest.importorskip("triton")

import kcache  # noqa: E402
from kcache import group  # noqa: E402
from kcache.digest import Key, Part  # noqa: E402
from kcache.hooks import session  # noqa: E402
from tests.test_build import HELPER, code, recipe_of  # noqa: E402
from tests.test_link import kern, program  # noqa: E402


@pytest.fixture
def store(own_caches: Path, tmp_path: Path) -> dict[int, Any]:
    """A store with two kernels' binaries and recipes; by block size, what Triton made of them."""
    kcache.enable()
    kernel = program(tmp_path / "p", {"kern.py": kern("f(x)", HELPER)})
    made = {block: recipe_of(kernel, block=block) for block in (32, 64)}
    kcache.disable()
    return made


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kcache_cli.main", *arguments],
        env={**os.environ, "TRITON_CACHE_DIR": "/nonexistent"}, capture_output=True, text=True, timeout=200,
    )  # fmt: skip


def found(recipe: Any) -> dict[str, bytes] | None:
    """The group that a run would find for `recipe`."""
    kcache.enable()
    value = session.current().cache.get("triton", group.key_of(group.folder(recipe.hash), recipe.group))
    kcache.disable()
    return None if value is None else group.unpack(value)


def test_what_was_purged_is_built_and_found(store: dict[int, Any]) -> None:
    assert command("purge", "--layer", "triton", "--yes").returncode == 0
    assert found(store[32][0]) is None
    dry = command("compile", "--target", "cuda:90", "--dry-run")
    assert (dry.returncode, dry.stdout) == (0, "Would build 2 kernels.\n")
    done = command("compile", "--target", "cuda:90", "--jobs", "2")
    assert (done.returncode, done.stdout) == (0, "Built 2 kernels.\n"), done.stderr
    for recipe, made in store.values():
        files = found(recipe)
        assert files is not None and code(files["kern.cubin"]) == code(made.asm["cubin"])
    again = command("compile", "--target", "cuda:90")
    assert (again.returncode, again.stdout) == (0, "Built 0 kernels.\n")


def test_what_is_there_is_not_built(store: dict[int, Any]) -> None:
    assert command("compile", "--target", "cuda:90").stdout == "Built 0 kernels.\n"


def test_another_gpu(store: dict[int, Any]) -> None:
    done = command("compile", "--target", "cuda:80", "--kernel", "kern")
    assert (done.returncode, done.stdout) == (0, "Built 2 kernels.\n"), done.stderr


@pytest.mark.parametrize("target", ["cuda", "cuda:", "nowhere:1", "cuda:90:many"])
def test_a_target_that_is_none(store: dict[int, Any], target: str) -> None:
    done = command("compile", "--target", target)
    assert done.returncode == 2 and "expected BACKEND:ARCHITECTURE" in done.stderr


def test_a_back_end_that_is_not_installed(store: dict[int, Any]) -> None:
    done = command("compile", "--target", "nowhere:1:32")
    assert done.returncode == 1 and done.stderr.count("no back end for nowhere") == 2
    assert done.stderr.endswith("kcache: 2 kernels could not be built.\n")


def test_one_that_fails_and_one_that_kills_its_process_leave_the_rest_built(store: dict[int, Any]) -> None:
    """The third aborts as a compiler does; the pool dies with it, and only that recipe fails."""
    good = store[32][0]
    wrong = replace(good, text=good.text.replace("x * 7.5", "x * undefined"), hash="aa" * 32, name="kern")
    fatal = replace(good, text="import os\nos.abort()\n" + good.text, hash="bb" * 32)
    kcache.enable()
    cache = session.current().cache
    for recipe in (wrong, fatal):
        cache.put("recipe", Key.of([Part.of("hash", recipe.hash)]), recipe.dumps(), label="kern")
    kcache.disable()
    command("purge", "--layer", "triton", "--yes")
    done = command("compile", "--target", "cuda:90", "--jobs", "2")
    assert done.returncode == 1 and done.stdout == "Built 2 kernels.\n", done.stderr
    assert re.search(r"kcache: kern: kern\.f: line \d+ of the linked text: return x \* undefined: NameError", done.stderr)
    assert "kcache: kern: the compiler ended its process" in done.stderr
    assert found(good) is not None and found(fatal) is None
