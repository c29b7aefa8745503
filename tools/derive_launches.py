"""Generates the launches of GPU ops from the comments beside their kernels; docs/gpu.md describes these comments.

A comment `/** op NAME ... */` in `cuda/<family>.cu` says which kernels compute an op forward and backward, and how many
threads they get.  The arguments of a launch follow from the parameters of the kernel: each is a name that is defined in
the comment, or one of those that stand for a part of the call (`VALUES`), or an argument of the op.  The generated code
is the region `launches of FAMILY, ...` of a module in `dynet_cy/gpu/`.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from derive_text import ROOT, WIDTH, Mistake, closing, split, with_region, with_regions, wrapped

CUDA = ROOT / "cuda"
GPU = ROOT / "dynet_cy" / "gpu"
OPS = ROOT / "dynet_cy" / "ops"

# The meaning of a parameter's name.
VALUES = {
    "y": "c.y.v",
    "dy": "c.dy.v",
    "dx": "c.dx.v",
    "saved": "c.saved",
    "work": "c.work",
    "items": "c.items",
    "item_count": "c.item_count",
    "seeds": "<const void*>c.seed",
    "acc": "c.accumulate",
    "stride_dx": "c.dx.bstride",
    "list_dx": "c.dx.list",
}
# The same for numbers that definitions use too, in the order of their definition.
NUMBERS = {
    "batch": "c.y.dim.bd",
    "elements": "c.dx.dim.bd",
    "uses": "c.y.dim.bd // c.dx.dim.bd",
}
# The functions that `gpu_op` takes.
PAIR = ("forward", "backward")
# How threads are laid out, and what each layout needs to know.
GRIDS = {"each": "n", "some": "n, k", "rows": "n, width", "slices": "n, width", "grid": "x, y"}
LOCAL = {*NUMBERS, *keyword.kwlist, "NULL", "min", "max", "gpu", "c", "i", "cdef", "noexcept", "nogil"}
LOCAL |= {"first", "some"}  # of `some`
# The lines that launch a kernel.
LAUNCHES = ("launch", "first")
# The functions of a GPU op: result and parameters.
FUNCTIONS = {
    "forward": ("int", "Gpu* gpu, const Call* c"),
    "begin_backward": ("int", "Gpu* gpu, const Call* c"),
    "backward": ("int", "Gpu* gpu, const Call* c, uint32_t i"),
    "saved": ("size_t", "const Call* c"),
    "work": ("size_t", "const Call* c, int i"),
    "spread": ("float", "const Call* c"),
    "same": ("float*", "const Call* c, uint32_t i"),
}


@dataclass(frozen=True)
class Kernel:
    """The type and name of each parameter of a kernel."""

    parameters: list[tuple[str, str]]


@dataclass(frozen=True)
class Line:
    """A line of a comment.

    Attributes:
        kind: "define" (name, value), "declare" (a struct: its type, names, and perhaps a value), "call" (fills such
            structs), "do" (calls a function that launches), "nothing" (on a condition), "return" (what another function
            returns), "launch", which returns, or "first", after which the function goes on.
        name: what is defined, or the kernel.
        value: the expression.
        type: of what is declared.
        defined: parameters of the kernel that only this launch defines.
        grid: the layout of the threads, and its arguments.
        condition: when the line holds; "" if always.
    """

    kind: str
    name: str = ""
    value: str = ""
    type: str = ""
    defined: dict[str, str] = field(default_factory=dict)
    grid: tuple[str, list[str]] = ("", [])
    condition: str = ""


@dataclass(frozen=True)
class Launch:
    """The contents of a comment for ops with the same functions.

    Attributes:
        where: the file and the first op, for messages.
        ops: the names of the ops that share these functions.
        draws: those of them that draw random numbers.
        arguments: their names, which parameters of kernels may have.
        sections: the lines of each function, with those that all share first.
        modules: others with kernels that functions launch which these lines call.
        fields: further fields of the GPU op, and their values.
    """

    where: str
    ops: list[str]
    draws: set[str]
    arguments: list[str]
    sections: dict[str, list[Line]]
    modules: list[str]
    fields: dict[str, str]

    def lines(self) -> Iterator[Line]:
        """The lines of all functions that launch a kernel."""
        yield from (line for lines in self.sections.values() for line in lines if line.kind in LAUNCHES)


# ---- reading ---------------------------------------------------------------------------


def kernels(text: str) -> dict[str, Kernel]:
    """The kernels of a .cu file, by name; in those that a macro defines, `*` stands for each parameter of the macro."""
    text = re.sub(r"\\\n", " ", text)
    words = dict(re.findall(r"^#define (\w+) (.+)$", text, re.MULTILINE))
    found = {}
    for match in re.finditer(r'extern "C" __global__ void ([\w#]+)\(', text):
        macro = re.compile(r"#define \w+\((.*?)\)").match(text, text.rfind("\n", 0, match.start()) + 1)
        inside = text[match.end() : closing(text, match.end() - 1)]
        inside = re.sub(r"\w+", lambda word: words.get(word[0], word[0]), inside)
        parameters = []
        for word in split(" ".join(inside.replace("__restrict__", "").split())):
            parts = re.fullmatch(r"(.+?[ *])(\w+)", word)
            if parts is None:
                raise Mistake(f"kernel {match[1]}: parameter {word!r} is not understood")
            parameters.append((parts[1].strip(), parts[2]))
        open_parts = split(macro[1]) if macro else []
        name = "".join("*" if part in open_parts else part for part in match[1].split("##"))
        found[name] = Kernel(parameters)
    return found


def read_line(text: str, where: str) -> Line:
    """One line of a comment."""
    launch = re.match(rf"(?:first )?(\w+)(?:\((.*)\))?: ({'|'.join(GRIDS)})\(", text)
    if launch:
        kind = "first" if text.startswith("first ") else "launch"
        end = closing(text, launch.end() - 1)
        grid = (launch[3], split(text[launch.end() : end]))
        if len(grid[1]) != len(split(GRIDS[grid[0]])):
            raise Mistake(f"{where}: {launch[1]}: {grid[0]} takes ({GRIDS[grid[0]]}), not ({', '.join(grid[1])})")
        condition = text[end + 1 :].removeprefix(" if ")
        return Line(kind, launch[1], defined=definitions(launch[2] or ""), grid=grid, condition=condition)
    declared = re.fullmatch(r"([A-Z]\w*) (\w+(?:, \w+)*)(?: = (.+))?", text)
    if declared:
        return Line("declare", declared[2], declared[3] or "", declared[1])
    defined = re.fullmatch(r"(\w+) = (.+)", text)
    if defined:
        return Line("define", defined[1], defined[2])
    called = re.fullmatch(r"(first )?(\w+\(.*\))", text)
    if called:
        return Line("do" if called[1] else "call", value=called[2])
    ended = re.fullmatch(r"(nothing|return (?:.+?))(?: if ((?:(?! else |, ).)+))?", text)
    if ended:
        kind, _, value = ended[1].partition(" ")
        return Line(kind, value=value, condition=ended[2] or "")
    raise Mistake(f"{where}: line {text!r} is not understood")


def read(comment: str, file: str) -> Iterator[Launch]:
    """The launches in a comment.  It begins with lines `op NAME(ARGUMENT, ...)`, with the value of each `{...}`."""
    lines = [re.sub(r"^\s*\* ?|#.*", "", line).strip() for line in comment.strip().split("\n")]
    where = f"{file}, {lines[0]}"
    heads = [re.fullmatch(r"op (\w+)\((.*?)\)( draws)?(?:: (.+))?", line) for line in lines]
    body = [line for line, head in zip(lines, heads) if line and not head]
    for ops in alike([head for head in heads if head], body):
        values = {"op": ops[0][1], **definitions(ops[0][4] or "")}
        shared: list[Line] = []
        modules: list[str] = []
        fields: dict[str, str] = {}
        sections: dict[str, list[Line]] = {}
        into = shared
        for text in body:
            line = text.format(**values) if "{" in text else text
            field_of_op = re.fullmatch(r"set (\w+) = (.+)", line)
            if field_of_op:
                fields[field_of_op[1]] = field_of_op[2]
                continue
            listed = re.fullmatch(r"uses (\w+(?:, \w+)*)", line)
            if listed:
                modules += split(listed[1])
                continue
            title = re.fullmatch(rf"({'|'.join(FUNCTIONS)}):(?: (.+))?", line)
            if title:
                into = sections[title[1]] = list(shared)
                line = f"return {title[2]}" if title[2] else ""
            if line:
                into.append(read_line(line, where))
        if not sections:
            raise Mistake(f"{where}: nothing is launched")
        draws = {op[1] for op in ops if op[3]}
        yield Launch(where, [op[1] for op in ops], draws, split(ops[0][2]), sections, modules, fields)


def alike(heads: list[re.Match[str]], body: list[str]) -> list[list[re.Match[str]]]:
    """The heads of ops, grouped by equal bodies."""
    names = any("{op}" in line for line in body)
    found: dict[str, list[re.Match[str]]] = {}
    for head in heads:
        found.setdefault(head[1] if names else head[4] or "", []).append(head)
    return list(found.values())


def definitions(text: str) -> dict[str, str]:
    """The names and values in `name = value, name = value`."""
    return {name: value for name, _, value in (part.partition(" = ") for part in split(text))}


# ---- names that launches use from other modules --------------------------------------------


@cache
def declarations() -> dict[str, list[tuple[str, str]]]:
    """The modules that declare each name for Cython, with the line that does."""
    found: dict[str, list[tuple[str, str]]] = {}
    folders = [
        ROOT / "dynet_cy" / "core" / "tensor.pxd",
        GPU / "registry.pxd",
        GPU / "driver.pxd",
        *sorted(OPS.glob("*.pxd")),
    ]
    for path in [*folders, *(p for p in sorted(GPU.glob("*.pxd")) if p not in folders)]:
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        text = re.sub(r'""".*?"""', "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
        block = ""
        for line in text.split("\n"):
            line = line.split("#")[0].rstrip()
            block = line if re.match(r"\w", line) else block
            is_inside = line != block and not re.match(r"cdef (extern|enum)", block)  # of a struct, or of a function
            if is_inside or re.match(r"(from|import|cdef extern|cdef enum:|    enum:)", line):
                continue
            name = re.search(r'(\w+)(?: "[^"]*")?(?:\(.*|:| = .*|)$', line)
            if name:
                found.setdefault(name[1], []).append((module, line))
    return found


@cache
def ops() -> set[str]:
    """The names of ops, and other bytes literals of their modules."""
    paths = [*OPS.glob("*.pyx"), ROOT / "dynet_cy" / "model" / "parameters.pyx"]
    return {name for path in paths for name in re.findall(r'\bb"(\w+)"', path.read_text(encoding="utf-8"))}


def names_in(text: str) -> set[str]:
    """The names in an expression, except those of fields and types."""
    return set(re.findall(r"(?<![\w.])[A-Za-z_]\w*", re.sub(r"<[a-z_0-9 ]+\**>", "", text)))


# ---- writing -------------------------------------------------------------------------------


class Function:
    """One function of a GPU op.

    Attributes:
        defined: the names that the comment defines.
    """

    def __init__(self, module: Module, launch: Launch, section: str) -> None:
        self.module, self.launch, self.section = module, launch, section
        self.steps = launch.sections[section]
        self.defined = {name for line in self.steps for name in split(line.name) if line.kind in ("define", "declare")}
        self.types: dict[str, str] = {}  # of what is defined, where the parameter of a kernel says it
        for line in self.steps:
            if line.grid[0] == "some" and (line.kind == "first" or line.condition):
                raise Mistake(f"{launch.where}: {line.name}: some(...) ends a function, without a condition")
            if line.kind in LAUNCHES:
                parameters = module.kernel(line.name, launch.where).parameters
                for kind, name in parameters:
                    self.types.setdefault(name, kind)
                unknown = [name for name in line.defined if name not in [own for _, own in parameters]]
                if unknown:
                    raise Mistake(f"{launch.where}: kernel {line.name} has no parameter {unknown[0]}")

    def head(self) -> str:
        """Its first line."""
        result, parameters = FUNCTIONS[self.section]
        return f"cdef {result} {self.launch.ops[0]}_{self.section}({parameters}) noexcept nogil:"

    def body(self) -> Iterator[str]:
        """Its further lines."""
        used = self.used()
        for name, value in NUMBERS.items():
            if name in used and name not in self.defined:
                yield f"    cdef size_t {name} = {value}"
        ended = False
        for line in self.steps:
            if line.kind in ("define", "declare") and used.isdisjoint(split(line.name)):
                continue
            if line.kind == "call" and used.isdisjoint(names_in(line.value) & self.defined):
                continue
            if ended:
                raise Mistake(f"{self.launch.where}, {self.section}: nothing can follow a line without a condition")
            yield from self.line(line)
            ended = line.kind in ("nothing", "return", "launch") and not line.condition
        if not ended:
            yield "    return 0"

    def line(self, line: Line) -> Iterator[str]:
        """The code of one line."""
        if line.kind == "define":
            kind = self.types.get(line.name, "size_t").replace("unsigned", "uint32_t")
            value = as_float(line.value) if kind == "float" else line.value
            yield from code(f"    cdef {kind} {line.name} = {value}")
        elif line.kind == "declare":
            yield from code(f"    cdef {line.type} {line.name}" + (f" = {line.value}" if line.value else ""))
        elif line.kind in ("call", "do"):
            yield from code(f"    {line.value}")
        elif line.grid[0] == "some":
            before = line.grid[1][1]
            yield from ("    cdef uint32_t first = 0", "    cdef Some some")
            yield f"    while first == 0 or first < c.n - {before}:"
            yield f"        some = some_of(c, {before}, first)"
            yield from code(f"        {self.launched(line)}")
            yield from ("        first += SOME", "    return gpu.error")
        else:
            indent = "    "
            if line.condition:
                yield from code(f"    if {line.condition}:")
                indent = "        "
            done = {"nothing": "0", "return": line.value}.get(line.kind) or self.launched(line)
            yield from code(f"{indent}{done}" if line.kind == "first" else f"{indent}return {done}")

    def launched(self, line: Line) -> str:
        """The call that launches a kernel."""
        shape, sizes = line.grid
        if shape == "some":
            shape, sizes = "each", sizes[:1]
        kernel = self.module.kernel(line.name, self.launch.where)
        words = ["gpu", self.module.number_of(line.name), *sizes, *(["THREADS", "0"] if shape == "grid" else [])]
        words += [self.passed(kind, parameter, line) for kind, parameter in kernel.parameters]
        return f"{'launch' if shape == 'grid' else f'launch_{shape}'}({', '.join(words)})"

    def passed(self, kind: str, parameter: str, line: Line) -> str:
        """The argument for a parameter of a kernel."""
        if parameter in line.defined:
            value = line.defined[parameter]
            return as_float(value) if kind == "float" else value
        if kind == "dy_some":
            return "value_at(&some)"
        if parameter in self.defined:
            pointer = [step.value for step in self.steps if "*" in kind and step.name == parameter]
            return pointer[0] if pointer else f"value_at(&{parameter})" if kind.startswith("dy_") else parameter
        for name in (parameter, parameter[:-1] if parameter.endswith("s") else parameter):
            if name in NUMBERS:
                return name
            value = VALUES.get(name) or self.argument(name)
            if value:
                return value
        raise Mistake(
            f"{self.launch.where}, {self.section}: parameter {parameter} of {line.name} is neither defined here, nor a "
            f"part of every call ({', '.join([*VALUES, *NUMBERS])}), nor an argument of the op "
            f"({', '.join(self.launch.arguments)})"
        )

    def argument(self, name: str) -> str:
        """The expression for the name of an argument of the op, perhaps after `stride_` or `list_`; or ""."""
        names = self.launch.arguments
        for start, part in (("", "v"), ("stride_", "bstride"), ("list_", "list")):
            if name.startswith(start) and name[len(start) :] in names:
                return f"c.x[{names.index(name[len(start) :])}].{part}"
            if self.section == "backward" and name in (f"{start}own", f"{start}other"):
                return f"c.x[{'i' if name.endswith('own') else '1 - i'}].{part}"
        return ""

    def used(self) -> set[str]:
        """The names that the code uses."""
        used: set[str] = set()
        for line in self.steps:
            if line.kind in (*LAUNCHES, "do", "nothing", "return"):
                used |= names_in(line.condition) | names_in(line.value) | names_in(" ".join(line.grid[1]))
            if line.kind in LAUNCHES:
                parameters = self.module.kernel(line.name, "").parameters
                used |= names_in(" ".join(self.passed(kind, name, line) for kind, name in parameters))
        before: set[str] = set()
        while used != before:
            before = set(used)
            for line in self.steps:
                if line.kind in ("define", "declare") and not used.isdisjoint(split(line.name)):
                    used |= names_in(line.value) | ({line.type} if line.type else set())
                if line.kind == "call" and not used.isdisjoint(names_in(line.value) & self.defined):
                    used |= names_in(line.value)
        return used


class Module:
    """The generated code of a family: its part of a region."""

    def __init__(self, family: str, own: str, found: dict[str, Kernel]) -> None:
        """`own` is the part of the module that is written by hand."""
        self.family, self.own, self.kernels = family, own, found
        self.declared = declarations()
        self.ops = ops()
        self.numbers = {kernel: name for name, kernel in re.findall(r'cdef int (\w+) = kernel_at\(\w+, b"(\w+)"', own)}
        variable = re.search(rf'^(?:cdef int )?(\w+) = module_at\(b"{family}"\)', own, re.MULTILINE)
        self.is_named = variable is not None
        self.variable = variable[1] if variable else f"CU_{family.upper()}"
        self.new: list[str] = []  # kernels without a number in `own`
        self.used = {"Gpu", "GpuOp", "Call", "uint32_t", "gpu_op", "module_at", "kernel_at"}

    def kernel(self, name: str, where: str) -> Kernel:
        if name in self.kernels:
            return self.kernels[name]
        for pattern, kernel in self.kernels.items():
            if re.fullmatch(pattern.replace("*", r"\w+"), name):
                return kernel
        raise Mistake(f"{where}: cuda/{self.family}.cu has no kernel {name}")

    def number_of(self, kernel: str) -> str:
        """The variable with the number of a kernel."""
        if kernel not in self.numbers:
            self.numbers[kernel] = kernel.upper()
            self.new.append(kernel)
        return self.numbers[kernel]

    def assigns(self, launch: Launch) -> bool:
        """Whether backward obeys `acc`: assign the gradient or add it."""
        obeying = [
            "c.accumulate" in line.value
            if line.kind == "return"
            else "acc" in [name for _, name in self.kernel(line.name, launch.where).parameters]
            for line in launch.sections.get("backward", [])
            if line.kind in (*LAUNCHES, "return")
        ]
        if any(obeying) and not all(obeying):
            raise Mistake(f"{launch.where}: backward must obey acc in all of its kernels, or in none")
        return any(obeying)

    def reads_lists(self, launch: Launch) -> bool:
        """Whether all kernels of an op read its arguments where a list of pointers says."""
        names = [{name for _, name in self.kernel(line.name, launch.where).parameters} for line in launch.lines()]
        return bool(names) and all(any(name.startswith("list_") for name in own) for own in names)

    def text(self, launches: list[Launch]) -> Iterator[str]:
        """Its lines."""
        body: list[str] = []
        written: dict[tuple[str, str], str] = {}  # the name of the function of each section with these lines
        for launch in launches:
            unknown = [name for name in launch.ops if name not in self.ops]
            if unknown:
                raise Mistake(f"{launch.where}: there is no op {unknown[0]}")
            functions = dict.fromkeys(PAIR, "NULL")
            for section in launch.sections:
                function = Function(self, launch, section)
                lines = joined(function.body())
                for name in sorted(function.used() - function.defined - LOCAL - self.names() - set(self.declared)):
                    raise Mistake(f"{launch.where}, {section}: {name} is not defined here or declared in a .pxd")
                functions[section] = f"{launch.ops[0]}_{section}"
                same = written.setdefault((section, "\n".join(lines)), functions[section])
                if same == functions[section]:
                    body += ["", "", function.head(), *lines]
                functions[section] = same
                own = names_in(" ".join(lines)) - function.defined - LOCAL
                self.used |= own
            body.append("")
            module = self.variable if any(launch.lines()) else "BASE"
            self.used.add(module)
            for name in launch.ops:
                pair = ", ".join(functions[section] for section in PAIR)
                body += ["", *code(f'op = gpu_op(b"{name}", {module}, {pair})')]
                for other in (f"CU_{module.upper()}" for module in launch.modules):
                    body.append(f"needs_module(op, {other})")
                    self.used |= {other, "needs_module"}
                body += [f"op.{section} = {own}" for section, own in functions.items() if section not in PAIR]
                body += [f"op.{field} = {value}" for field, value in launch.fields.items()]
                self.used |= names_in(" ".join(launch.fields.values()))
                body += ["op.draws = True"] if name in launch.draws else []
                body += ["op.assigns = True"] if self.assigns(launch) else []
                body += ["op.lists = True"] if self.reads_lists(launch) else []
        if not self.is_named and (self.new or self.variable in self.used):
            yield f'cdef int {self.variable} = module_at(b"{self.family}")'
        yield from [f'cdef int {kernel.upper()} = kernel_at({self.variable}, b"{kernel}")' for kernel in self.new]
        yield from body

    def names(self) -> set[str]:
        """The names that the hand-written part defines and imports."""
        found = set(re.findall(r"^cdef [^=(\n]*?(\w+)(?:\(| =|$)", self.own, re.MULTILINE))
        imported = " ".join(re.findall(r"cimport (\([^()]*\)|.*)", self.own))
        structs = re.findall(r"^ *(?:ctypedef \w+|cdef struct) (\w+)", self.own, re.MULTILINE)
        return found | set(re.findall(r"\w+", imported)) | set(structs)

    def imports(self, used: set[str], stem: str) -> Iterator[str]:
        """The imports of names that are used, declared in another module, and not imported by hand."""
        here = self.names()
        by_module: dict[str, list[str]] = {}
        for name in sorted(used - here):
            places = sorted({module for module, _ in self.declared.get(name, [])})
            own = f"dynet_cy.ops.{stem}"
            if len(places) > 1 and own not in places:
                raise Mistake(f"dynet_cy/gpu/{stem}.pyx: {name} is declared in {' and in '.join(places)}")
            if places:
                by_module.setdefault(own if own in places else places[0], []).append(name)
        if "uint32_t" not in here:
            yield "from libc.stdint cimport uint32_t"
            yield ""
        for module, names in sorted(by_module.items()):
            yield from wrapped_import(module, names)


def wrapped_import(module: str, names: list[str]) -> Iterator[str]:
    line = f"from {module} cimport {', '.join(sorted(names, key=lambda n: (not n.isupper(), n.islower(), n)))}"
    if len(line) <= WIDTH:
        yield line
    else:
        start, _, words = line.partition(" cimport ")
        yield f"{start} cimport ("
        yield from wrapped(words + ",", "    ")
        yield ")"


def as_float(value: str) -> str:
    """An expression as a float, of which C might make a double."""
    return f"<float>{value}" if re.fullmatch(r"[\w.]+(\(\w*\)|\[\w+\][.\w]*)?", value) else f"<float>({value})"


def code(line: str) -> Iterator[str]:
    """A line of code, broken between the arguments of its call if it is too long."""
    if len(line) <= WIDTH:
        yield line
        return
    # Only the spaces after commas remain, where a line may end.
    for part in wrapped(line.replace(" ", "\0").replace(",\0", ", "), "", " " * (line.index("(") + 1)):
        yield part.replace("\0", " ")


def joined(lines: Iterable[str]) -> list[str]:
    """Lines of code, with adjacent declarations of one type on one line where there is space."""
    found: list[str] = []
    for line in lines:
        declared = re.match(r"    cdef ([a-z]\w*) ", line)
        if declared and found and found[-1].startswith(declared[0]):
            longer = f"{found[-1]}, {line[declared.end() :]}"
            if len(longer) <= WIDTH:
                found[-1] = longer
                continue
        found.append(line)
    return found


def region(stem: str, own: str, families: list[str], sources: dict[str, str]) -> Iterator[str]:
    """The launches of the families in a module of GPU ops, of which `own` is the part that is written by hand."""
    found = {
        family: [launch for comment in comments(sources[family]) for launch in read(comment, f"cuda/{family}.cu")]
        for family in families
    }
    parts = [
        (Module(family, own, kernels(sources[family])), launches) for family, launches in found.items() if launches
    ]
    yield from composed(stem, own, parts)


def composed(stem: str, own: str, parts: list[tuple[Module, list[Launch]]]) -> Iterator[str]:
    """The lines of a region: imports for all families, then the launches of each."""
    texts = [list(module.text(launches)) for module, launches in parts]
    body = [line for text in texts for line in (["", *text] if text[0] else text)]
    if parts:
        yield from parts[0][0].imports(set().union(*(module.used for module, _ in parts)), stem)
        if not re.search(r"^cdef GpuOp\* op\b", own, re.MULTILINE):
            yield from ["", "cdef GpuOp* op"]
        yield from body


def comments(text: str) -> list[str]:
    """The comments about ops in a .cu file."""
    return re.findall(r"^/\*\*\s*(op .*?)\s*\*/", text, re.MULTILINE | re.DOTALL)


def launches() -> Iterator[tuple[Path, str]]:
    """Path and text of each module with launches, and of the list of modules."""
    sources = {path.stem: path.read_text(encoding="utf-8") for path in sorted(CUDA.glob("*.cu"))}
    modules = {path: path.read_text(encoding="utf-8") for path in sorted(GPU.glob("*.pyx"))}
    marks = {path: re.search(r"^# derived: launches of (.+)$", text, re.MULTILINE) for path, text in modules.items()}
    families = {path: split(mark[1]) for path, mark in marks.items() if mark}
    placed = {family for named in families.values() for family in named}
    for family, text in sources.items():
        if comments(text) and family not in placed:
            title = re.search(r"^//\n// ((?:.*\n// )*?.*?\.)\s", text, re.MULTILINE)
            first = " ".join(title[1].replace("//", "").split()) if title else family
            path = GPU / f"{family}.pyx"
            modules[path] = f'"""{first}"""\n\n# derived: launches of {family}\n# end of launches\n'
            families[path] = [family]
    for path, named in families.items():
        own = with_region(modules[path], "launches", iter([]))
        yield path, with_region(modules[path], "launches", region(path.stem, own, named, sources))
    by_hand = {path.stem for path in GPU.glob("*.pyx") if " = gpu_op(" in path.read_text(encoding="utf-8")}
    names = sorted({*(path.stem for path in families), *by_hand, "custom", "executor", "memory"})
    comment = "# type: ignore[attr-defined]  # noqa: F401 - register"
    lines = [f"from dynet_cy.gpu import (  {comment}", *(f"    {name}," for name in names), ")"]
    yield with_regions(GPU / "backend.py", modules=iter([*lines, ""]))
