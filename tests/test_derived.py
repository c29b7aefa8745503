"""Derived files are up to date with their rows and functions, and unreadable sources raise errors."""

from __future__ import annotations

import re
import runpy
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from dynet_cy.ops import api
from dynet_cy.ops.registry import describe

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def derive() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "tools" / "derive.py"))


def test_all_files_are_in_step(derive: dict[str, Any]) -> None:
    assert derive["main"](check=True) == [], "run python tools/derive.py"


@pytest.mark.parametrize(("file", "kind"), [("unary.def", "UNARY"), ("binary.def", "BINARY")])
def test_each_row_is_an_op(derive: dict[str, Any], file: str, kind: str) -> None:
    """Each row is an op, anywhere in the file, and has a function if its comment declares one."""
    ops = {op["name"] for op in describe()}
    rows = derive["rows"](file)
    for row in rows:
        assert (row.name in ops) == (row.kind == kind) or row.kind == "BINARY_PART"
    faces = [derive["face"](row, 2 if kind == "BINARY" else 1) for row in rows]
    names = {face.name for face in faces if face}
    assert len(names) > 1
    assert names <= set(api.__all__)


def test_the_guide_shows_rows_as_they_are() -> None:
    """The guide's example of an elementwise function matches the sources line by line; `...` stands for other rows."""
    guide = (ROOT / "docs" / "add-an-op.md").read_text(encoding="utf-8")
    section = guide.partition("## An elementwise function\n")[2].partition("\n## ")[0]
    blocks = re.findall(r"```\w+\n(.*?)```", section, re.DOTALL)
    assert len(blocks) == 2
    for file, block in zip(("include/dynet_cy/unary.def", "tests/elementwise.py"), blocks):
        source = (ROOT / file).read_text(encoding="utf-8").splitlines()
        at = 0
        for line in textwrap.dedent(block).rstrip().splitlines():
            if line.strip() != "...,":
                at = source.index(line, at) + 1


def test_a_row_becomes_a_function(derive: dict[str, Any], tmp_path: Path) -> None:
    """A row becomes a function with a docstring, numbers, defaults and checks."""
    (tmp_path / "some.def").write_text(
        "/* SPDX */\n\n"
        "UNARY(hidden, (f(x, 1)), (y))\n"
        "/** leaky(x, slope=0.01): Of each\n * element.\n *\n * require slope < 0 or slope > 1: slope is {slope}\n */\n"
        "UNARY(leaky, (SEL(x > C(0.f), x, p0 * x)), (p0))\n"
        "/** inside(x, low, high): Both. */\nUNARY(inside, (x),\n      (y))\n"
    )
    derive["functions"].__globals__["ROWS"] = tmp_path
    try:
        lines = "\n".join(derive["functions"]("some.def", "UNARY", "UNARY"))
    finally:
        derive["functions"].__globals__["ROWS"] = ROOT / "include" / "dynet_cy"
    assert "hidden" not in lines
    assert lines.endswith(
        "\n\n\ndef leaky(x, float slope=0.01):\n"
        '    """Of each\n    element.\n\n    Args:\n        x: an expression of any shape, which the result has too.\n'
        '    """\n'
        "    if not (slope < 0 or slope > 1):\n"
        '        raise ValueError(f"leaky: slope is {slope}")\n'
        "    return apply_unary(DY_UNARY_leaky, x, slope, 0)\n"
        "\n\ndef inside(x, float low, float high):\n"
        '    """Both.\n\n    Args:\n        x: an expression of any shape, which the result has too.\n    """\n'
        "    return apply_unary(DY_UNARY_inside, x, low, high)"
    )


@pytest.mark.parametrize(
    ("comment", "message"),
    [
        ("/** tanh: no arguments */", "the comment must begin as"),
        ("/** tanh(x) no colon */", "the comment must begin as"),
        ("/** tanh(x, a, b, c): too many */", "takes 1 expressions"),
        ("/** tanh(): none */", "takes 1 expressions"),
    ],
)
def test_comments_that_say_nothing(derive: dict[str, Any], comment: str, message: str) -> None:
    row = derive["Row"]("UNARY", "tanh", "(TANH(x)), (y)", comment[3:-2])
    with pytest.raises(derive["Mistake"], match=message):
        derive["face"](row, 1)


@pytest.mark.parametrize("text", ["axis=None", "dims=(1, 0)", "**more", "a b c"])
def test_arguments_that_need_a_type(derive: dict[str, Any], text: str) -> None:
    with pytest.raises(derive["Mistake"], match="here: argument"):
        sys.modules["derive_stubs"].argument(text, "here")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def f(x):\n    pass\n", "f: argument x needs a type: x: TYPE"),
        ("def f(list xs):\n    pass\n", "f: argument xs needs a type: xs: TYPE"),
        ("cdef class A:\n    cdef readonly dict b\n", "A: b needs a type: cdef readonly dict b  # type: TYPE"),
        ("class A:\n    @property\n    def b(self):\n        pass\n", "A: property b needs a type"),
        ("def f(x: Tape) -> Array:\n    pass\n", "Array is a name in dynet_cy.model.dynet_decay and "),
    ],
)
def test_modules_that_need_a_type(derive: dict[str, Any], tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "some.pyx"
    path.write_text(text)
    with pytest.raises(derive["Mistake"], match=re.escape(message)):
        derive["stub"](derive["compiled"](path), "some.pyx")


HEADER = """#define DY_PARTS 3
#define DY_NO_PART UINT32_MAX
enum { DY_ONE = 1, DY_TWO,
       DY_THREE };
struct dy_pair {
    uint32_t n : 10;   /* how
 * many; */
    const float *a, *b;
    union {
        _Atomic int from;
        size_t sizes[DY_PARTS + 1];
    };
};
typedef struct {
    dy_pair parts[DY_PARTS][2];
    float *const *list;
    void *(*grow)(const struct dy_pair *p, size_t bytes);
} dy_made_pairs;
typedef struct {
    int x;
} dy_flat;
typedef struct {
    dy_other *other;
} dy_odd;
typedef struct {
    int list[DY_UNKNOWN];
} dy_long;
static inline const float *dy_first(const struct dy_pair *p, size_t n) { return p->a + n; }
static inline int dy_count(void) {
    return DY_PARTS;
}
int dy_run(void (*job)(void *of), const size_t in[2]);
typedef int (*dy_rule)(const struct dy_pair *p);
typedef uint32_t dy_word;
extern const char *const dy_names[DY_PARTS];
static _Thread_local int dy_last_one;
#define DY_CALLS \\
    CALL(first, (int n)) \\
    CALL(second, (const void *from, \\
                  unsigned long long n))
typedef struct {
#define CALL(name, arguments) int (*name) arguments;
    DY_CALLS
#undef CALL
} dy_calls;
enum { DY_A, DY_B, DY_KINDS };
typedef struct {
    struct dy_pair *pair;
    dy_flat flats[DY_KINDS - 1];
} dy_outer;
"""
DECLARED = {
    "structs of Pair,\n    #     Pairs = dy_made_pairs": """    ctypedef struct Pair "struct dy_pair":
        uint32_t n
        const float* a
        const float* b
        int begin "from"
        size_t sizes[4]

    ctypedef struct Pairs "dy_made_pairs":
        Pair parts[3][2]
        float* const* list
        void* (*grow)(const Pair* p, size_t bytes) noexcept nogil
""",
    "constants of ONE, TWO, THREE, PARTS, none = DY_NO_PART": """    int ONE "DY_ONE"
    int TWO "DY_TWO"
    int THREE "DY_THREE"
    int PARTS "DY_PARTS"
    uint32_t none "DY_NO_PART"
""",
    "functions of first, number = dy_count": """    const float* first "dy_first"(const Pair* p, size_t n)
    int number "dy_count"()
""",
    "functions of bint run": """    bint run "dy_run"(void (*job)(void* of) noexcept nogil, const size_t* inputs)
""",
    "types of bint Rule, dy_word": """    ctypedef bint (*Rule "dy_rule")(const Pair* p) noexcept nogil
    ctypedef uint32_t dy_word
""",
    "variables of names, dy_last_one": """    const char* const names "dy_names"[]
    int dy_last_one
""",
    "structs of Calls": """    ctypedef struct Calls "dy_calls":
        int (*first)(int n) noexcept nogil
        int (*second)(const void* begin, unsigned long long n) noexcept nogil
""",
    "structs of Outer = dy_outer with x of flats[DY_A] with n a of pair": """    ctypedef struct Outer "dy_outer":
        Pair* pair
        dy_flat flats[1]
        int x "flats[DY_A].x"
        uint32_t n "pair->n"
        const float* a "pair->a"
""",
    "types of Missing": "there is no type dy_missing",
    "variables of missing": "there is no variable dy_missing",
    "structs of None": "there is no struct dy_none",
    "constants of FOUR": "there is no constant DY_FOUR",
    "functions of last": "there is no function dy_last",
    "structs of Odd": "'dy_other *other' has a type that the file does not know",
    "structs of Long": "the size 'DY_UNKNOWN' is not understood",
}


@pytest.mark.parametrize("asked", DECLARED)
def test_declarations_of_headers(derive: dict[str, Any], tmp_path: Path, asked: str) -> None:
    """Fields, one a line; those of unnamed unions too. What a header or a file does not know raises."""
    structs, expected = sys.modules["derive_structs"], DECLARED[asked]
    (tmp_path / "include" / "some").mkdir(parents=True)
    (tmp_path / "include" / "some" / "some.h").write_text('#include "other.h"\n')
    (tmp_path / "include" / "some" / "other.h").write_text(HEADER)
    kind = asked.partition(" ")[0]
    text = f'cdef extern from "some/some.h":\n    # derived: {asked}\n    old\n    # end of {kind}\n'
    known = {**{name: name for name in (*structs.KNOWN, "uint32_t", "dy_flat")}, "dy_pair": "Pair"}
    old, structs.ROOT = structs.ROOT, tmp_path
    structs.header.cache_clear()
    try:
        match = structs.REGION.search(text)
        if expected.startswith(" "):
            assert structs.declared(match, known) == f"    # derived: {asked}\n{expected}    # end of {kind}"
        else:
            with pytest.raises(derive["Mistake"], match=re.escape(expected)):
                structs.declared(match, known)
    finally:
        structs.ROOT = old
        structs.header.cache_clear()


def test_arguments_have_the_text_of_their_name(derive: dict[str, Any]) -> None:
    """Beginning with the same word, and up to what is the entry's own; other entries stay."""
    module = sys.modules["derive_arguments"]
    texts = {"size": "length of a vector", "a, b": "decay of means", "m": "the model."}
    for old, new in {
        "size: length, in floats (default: 3)": "size: length of a vector (default: 3)",
        "size: length. Default: 3": "size: length of a vector. Default: 3",
        "size: length; 0 for none": "size: length of a vector; 0 for none",
        "size: see `other`": "size: see `other`",
        "a, b: decay, of g\n            and g²": "a, b: decay of means",
        "m: the collection.": "m: the model.",
        "c: decay": "c: decay",
    }.items():
        text = f"        {old}\n"
        assert module.ENTRY.sub(lambda match: module.with_text(match, texts), text) == f"        {new}\n", old


def test_structs_shared_with_gpus_stand_once() -> None:
    """They are declared once, in a header for both sides, with their size."""
    for header in sorted((ROOT / "include" / "dynet_cy").glob("gpu_*.h")):
        text = header.read_text(encoding="utf-8")
        structs = set(re.findall(r"^} (dy_\w+);", text, re.MULTILINE))
        sized = set(re.findall(r"^DY_SIZE\((dy_\w+), \d+\);", text, re.MULTILINE))
        parts = set(re.findall(r"^    (dy_\w+) \w+\[", text, re.MULTILINE))  # structs that are parts of others
        assert structs == sized | parts, header.name
    kernels = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "cuda").glob("*.cu*"))
    launchers = [p for p in (ROOT / "dynet_cy" / "gpu").iterdir() if p.suffix in (".pyx", ".pxd")]
    host = "".join(path.read_text(encoding="utf-8") for path in launchers)
    twice = set(re.findall(r"^struct (\w+) {", kernels, re.MULTILINE)) & set(re.findall(r"cdef struct (\w+):", host))
    assert not twice


# ---- launches of GPU ops -------------------------------------------------------------

KERNELS = """
#define PAIR(name) \\
    extern "C" __global__ void pair_##name(size_t batch, const float *__restrict__ as, float *y) { \\
    }

extern "C" __global__ void some_forward(size_t batch, size_t n, float scale, const float *xs, size_t stride_x,
                                        dy_axes kept, int blocks, float *y) {}
extern "C" __global__ void some_backward(size_t n, const float *dy, const uint32_t *where, float *dx, size_t elements,
                                         int acc) {}
extern "C" __global__ void adding(size_t n, const float *other, float *dx) {}
extern "C" __global__ void several(size_t batch, dy_some xs, float *y) {}
extern "C" __global__ void listed(size_t n, float *const *list_a, float *y) {}
"""


@pytest.fixture
def launches_of(derive: dict[str, Any]) -> Any:
    """A function: the code that is generated from a comment beside these kernels."""
    module = sys.modules["derive_launches"]

    def code(comment: str) -> str:
        found = list(module.read(comment, "cuda/some.cu"))
        return "\n".join(module.composed("some", "", [(module.Module("some", "", module.kernels(KERNELS)), found)]))

    return code


def test_a_comment_becomes_launches(launches_of: Any) -> None:
    """Definitions that a function does not use are left out; the kernel's parameters determine the arguments."""
    text = launches_of(
        "op sparsemax(x): scale = 3 * r\n * op softmax(x): scale = 2\n *\n"
        " * n = size_of(&c.y.dim)   # a remark\n * Axes kept, reduced\n * unused = 1 // n\n * r = c.attrs[0].f\n"
        " * split_axes(&c.y, &c.x[0], &kept, &reduced)\n"
        " * forward:\n * scale = {scale}\n * return fill(gpu, n if batch else 0, 0, c.y.v) if n == 0\n"
        " * some_forward(blocks = 1): rows(batch * n, n) if n > 3\n * some_forward(blocks = 0): each(n)\n"
        " * backward:\n * where = c.saved\n * nothing if batch == 0\n * some_backward: slices(n, 4)\n"
        " * work: 2 * n if i < 0 else 0"
    )
    for line in ("from dynet_cy.core.tensor cimport Call, size_of", "from dynet_cy.ops.api"):
        assert (line in text) == ("api" not in line)
    assert 'cdef int SOME_FORWARD = kernel_at(CU_SOME, b"some_forward")' in text
    sparsemax = text[text.index("cdef int sparsemax_forward") : text.index("\n\n\ncdef int softmax_forward")]
    assert sparsemax == (
        "cdef int sparsemax_forward(Gpu* gpu, const Call* c) noexcept nogil:\n"
        "    cdef size_t batch = c.y.dim.bd, n = size_of(&c.y.dim)\n"
        "    cdef Axes kept, reduced\n"
        "    cdef size_t r = c.attrs[0].f\n"
        "    split_axes(&c.y, &c.x[0], &kept, &reduced)\n"
        "    cdef float scale = <float>(3 * r)\n"
        "    if n == 0:\n"
        "        return fill(gpu, n if batch else 0, 0, c.y.v)\n"
        "    if n > 3:\n"
        "        return launch_rows(gpu, SOME_FORWARD, batch * n, n, batch, n, scale, c.x[0].v, c.x[0].bstride, "
        "value_at(&kept),\n                           1, c.y.v)\n"
        "    return launch_each(gpu, SOME_FORWARD, n, batch, n, scale, c.x[0].v, c.x[0].bstride, value_at(&kept), 0, "
        "c.y.v)\n\n\n"
        "cdef int sparsemax_backward(Gpu* gpu, const Call* c, uint32_t i) noexcept nogil:\n"
        "    cdef size_t batch = c.y.dim.bd, elements = c.dx.dim.bd, n = size_of(&c.y.dim)\n"
        "    if batch == 0:\n"
        "        return 0\n"
        "    return launch_slices(gpu, SOME_BACKWARD, n, 4, n, c.dy.v, c.saved, c.dx.v, elements, c.accumulate)\n\n\n"
        "cdef size_t sparsemax_work(const Call* c, int i) noexcept nogil:\n"
        "    cdef size_t n = size_of(&c.y.dim)\n"
        "    return 2 * n if i < 0 else 0\n\n\n"
        'op = gpu_op(b"sparsemax", CU_SOME, sparsemax_forward, sparsemax_backward)\n'
        "op.work = sparsemax_work\n"
        "op.assigns = True"
    )


def test_a_kernel_takes_some_arguments_at_a_time(launches_of: Any) -> None:
    """From the second argument on; and fields of the GPU op, and values that functions return."""
    text = launches_of("op softmax(a)\n * set laid = is_laid\n * forward:\n * several: some(batch, 1)\n * spread: 2")
    assert (
        "    cdef size_t batch = c.y.dim.bd\n"
        "    cdef uint32_t first = 0\n    cdef Some some\n"
        "    while first == 0 or first < c.n - 1:\n"
        "        some = some_of(c, 1, first)\n"
        "        launch_each(gpu, SEVERAL, batch, batch, value_at(&some), c.y.v)\n"
        "        first += SOME\n"
        "    return gpu.error\n"
    ) in text
    assert "cdef float softmax_spread(const Call* c) noexcept nogil:\n    return 2\n" in text
    assert text.endswith("op.spread = softmax_spread\nop.laid = is_laid")


def test_an_op_whose_functions_launch_by_themselves(launches_of: Any) -> None:
    """Its kernels are in base, which is always loaded, or in what it `uses`."""
    text = launches_of("op softmax(a)\n * uses some\n * forward: scaled(gpu, batch, 1, c.x[0].v, c.y.v, 0)")
    assert "return scaled(gpu, batch, 1, c.x[0].v, c.y.v, 0)" in text
    assert text.endswith('op = gpu_op(b"softmax", BASE, softmax_forward, NULL)\nneeds_module(op, CU_SOME)')


def test_an_op_does_not_take_the_name_of_a_function(derive: dict[str, Any]) -> None:
    function = sys.modules["derive_stubs"].Function("rms_norm", ["x: Expression"], "Expression")
    family = derive["Module"]("linalg", "Products.", [function])
    message = r"functions/norms.py: rms_norm is the name of a function of dynet_cy/ops/linalg.pyx"
    with pytest.raises(derive["Mistake"], match=message):
        derive["check_names"]([family])


@pytest.mark.parametrize(
    ("comment", "message"),
    [
        ("op softmax(x)\n * forward:\n * what is this", "line 'what is this' is not understood"),
        ("op softmax(x)\n * n = 3", "nothing is launched"),
        ("op no_op(x)\n * forward:\n * nothing", "there is no op no_op"),
        ("op softmax(x)\n * forward:\n * none: each(batch)", "has no kernel none"),
        (
            "op softmax(x)\n * n = 3\n * forward:\n * some_forward(blocks = 1, scale = 1): each(n)",
            "parameter kept of some_forward is neither defined here, nor a part of every call .*argument of the op .x.",
        ),
        (
            "op softmax(x)\n * n = 3\n * forward:\n * adding(m = 1): each(n)",
            "kernel adding has no parameter m",
        ),
        ("op softmax(x)\n * n = 3\n * forward:\n * adding: rows(n)", r"adding: rows takes \(n, width\), not \(n\)"),
        ("op softmax(a)\n * forward:\n * several: some(batch, 1) if batch", r"several: some\(...\) ends a function"),
        ("op softmax(z)\n * n = 3\n * forward:\n * adding: each(n)", "parameter other of adding"),
        ("op softmax(a)\n * forward:\n * nothing\n * pair_x: each(batch)", "nothing can follow"),
        (
            "op softmax(a)\n * n = 3\n * backward:\n * some_backward(where = NULL): each(n) if i\n * adding: each(n)",
            "backward must obey acc in all of its kernels, or in none",
        ),
    ],
)
def test_comments_that_launch_nothing(launches_of: Any, derive: dict[str, Any], comment: str, message: str) -> None:
    with pytest.raises(derive["Mistake"], match=message):
        launches_of(comment)


def test_the_gpu_page_shows_kernels_as_they_are() -> None:
    page = (ROOT / "docs" / "gpu.md").read_text(encoding="utf-8")
    shown = re.findall(r"```c\n(/\*\* op .*?)```", page, re.DOTALL)
    assert len(shown) == 1
    assert shown[0] in (ROOT / "cuda" / "linalg.cu").read_text(encoding="utf-8")


def test_a_name_of_no_module_is_an_error(launches_of: Any, derive: dict[str, Any]) -> None:
    with pytest.raises(derive["Mistake"], match="forward: size_off is not defined here or declared"):
        launches_of("op softmax(a)\n * forward:\n * pair_x: each(size_off(&c.y.dim))")
