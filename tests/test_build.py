"""Recipes and builds: the same binaries as Triton makes in the program itself. No GPU is needed to compile."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler.compiler import ASTSource, make_backend  # noqa: E402

import kcache  # noqa: E402
from kcache import build as building  # noqa: E402
from kcache.build import BuildError, Pool, build, retarget  # noqa: E402
from kcache.errors import Opaque  # noqa: E402
from kcache.hooks import kernels, recipes  # noqa: E402
from kcache.recipe import Recipe  # noqa: E402
from tests.test_link import kern, program  # noqa: E402

TARGET = GPUTarget("cuda", 90, 32)
SIGNATURE = {"x_ptr": "*fp32", "o_ptr": "*fp32", "n": "i32", "BLOCK": "constexpr"}
ALIGNED = {(0,): [["tt.divisibility", 16]], (1,): [["tt.divisibility", 16]]}
HELPER = "@triton.jit\ndef f(x):\n    return x * 7.5\n"


@pytest.fixture
def enabled() -> Iterator[None]:
    kcache.enable()
    yield
    kcache.disable()


def compiled(kernel: Any, block: int = 64, target: Any = TARGET, **options: Any) -> Any:
    """What Triton makes of it here, through all seams."""
    source = ASTSource(kernel, SIGNATURE, {(3,): block}, ALIGNED)
    parsed = make_backend(target).parse_options({"num_warps": 2, **options})
    return triton.compile(source, target=target, options=parsed.__dict__)


def recipe_of(kernel: Any, **keywords: Any) -> tuple[Recipe, Any]:
    made = compiled(kernel, **keywords)
    asked = kernels.last()
    assert asked is not None and asked.hash == made.hash
    return recipes.of(asked), made


def code(cubin: bytes) -> bytes:
    """The machine code in a cubin: what the linked text's other name and lines leave as it is."""
    import struct

    offset, count, names = struct.unpack_from("<Q", cubin, 0x28)[0], *struct.unpack_from("<HH", cubin, 0x3C)
    headers = [struct.unpack_from("<IIQQQQ", cubin, offset + 64 * i) for i in range(count)]
    table = headers[names][4]
    found = []
    for name, _, _, _, at, size in headers:
        end = cubin.index(b"\0", table + name)
        if cubin[table + name : end].startswith(b".text."):
            found.append(cubin[at : at + size])
    assert found
    return b"".join(found)


def test_a_recipe_gives_the_binary_that_the_program_gives(enabled: None, tmp_path: Path) -> None:
    recipe, made = recipe_of(program(tmp_path, {"kern.py": kern("f(x)", HELPER)}))
    files = build(Recipe.loads(recipe.dumps()))
    assert code(files["kern.cubin"]) == code(made.asm["cubin"])
    assert json.loads(files["kern.json"]) == json.loads(Path(made.metadata_group["kern.json"]).read_text())


def test_the_hash_is_tritons(enabled: None, tmp_path: Path) -> None:
    recipe, made = recipe_of(program(tmp_path, {"kern.py": kern("f(x)", HELPER)}))
    again = retarget(recipe, recipe.target)
    assert again == recipe and again.hash == made.hash


def test_another_target_is_asked_for_under_its_own_hash(enabled: None, tmp_path: Path) -> None:
    kernel = program(tmp_path, {"kern.py": kern("f(x)", HELPER)})
    recipe, _ = recipe_of(kernel)
    other = retarget(recipe, ("cuda", 80, 32))
    made = compiled(kernel, target=GPUTarget("cuda", 80, 32))
    assert other.hash == made.hash != recipe.hash
    files = build(other)
    assert code(files["kern.cubin"]) == code(made.asm["cubin"])
    assert json.loads(files["kern.json"])["target"]["arch"] == 80


def test_options_and_constants_keep_their_types(enabled: None, tmp_path: Path) -> None:
    kernel = program(tmp_path, {"kern.py": kern("x * BLOCK")})
    recipe, made = recipe_of(kernel, block=128, num_stages=5, maxnreg=64)
    assert recipe.constants == "{(3,): 128}"
    facts = json.loads(build(recipe)["kern.json"])
    assert (facts["num_stages"], facts["maxnreg"], facts["num_warps"]) == (5, 64, 2)
    assert hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest() == hashlib.sha256(
        json.dumps(json.loads(Path(made.metadata_group["kern.json"]).read_text()), sort_keys=True).encode()
    ).hexdigest()


def test_workers_build_side_by_side(enabled: None, tmp_path: Path) -> None:
    kernel = program(tmp_path, {"kern.py": kern("f(x)", HELPER)})
    made = {block: recipe_of(kernel, block=block) for block in (32, 64, 128)}
    pool = Pool(2)
    try:
        futures = {block: pool.submit(recipe) for block, (recipe, _) in made.items()}
        for block, (_, here) in made.items():
            assert code(futures[block].result(120)["kern.cubin"]) == code(here.asm["cubin"])
    finally:
        pool.close()


def test_what_cannot_be_built_says_why(enabled: None, tmp_path: Path) -> None:
    recipe, _ = recipe_of(program(tmp_path, {"kern.py": kern("f(x)", HELPER)}))
    with pytest.raises(BuildError, match=r"Triton 0\.0"):
        build(replace(recipe, versions={**recipe.versions, "triton": "0.0"}))
    with pytest.raises(BuildError, match="assembled by"):
        build(replace(recipe, versions={**recipe.versions, "tool": "other"}))
    with pytest.raises(BuildError, match="no back end for nowhere"):
        retarget(recipe, ("nowhere", 1, 32))
    with pytest.raises(ValueError):
        Recipe.loads(b"{}\nx")


def test_a_kernel_whose_assertions_name_their_place_has_no_recipe(enabled: None, tmp_path: Path) -> None:
    kernel = program(tmp_path, {"kern.py": kern("f(x)", HELPER)})
    compiled(kernel, debug=True)
    asked = kernels.last()
    assert asked is not None
    with pytest.raises(Opaque, match="assertions"):
        recipes.of(asked)


def test_a_recipe_is_stored_beside_the_artifacts(enabled: None, tmp_path: Path) -> None:
    from kcache.hooks import session

    made = compiled(program(tmp_path, {"kern.py": kern("f(x)", HELPER)}))
    cache = session.current().cache
    cache.flush()
    stored = list(cache.store.scan("recipe"))
    assert [s.record.label for s in stored] == ["kern"]
    assert Recipe.loads(cache.store.read(stored[0].record)).hash == made.hash


def test_linked_text_is_shown_in_errors(tmp_path: Path) -> None:
    loaded = building.load("import triton\n\n@triton.jit\ndef k(x):\n    return x\n", "k")
    assert loaded.src.startswith("def k(x)")
