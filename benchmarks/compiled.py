"""Reads what XLA has made of a program: the kernels of a loop's body, what each moves and computes.

A compiled program's text (`as_text()` of what JAX has compiled) is a list of computations; one that runs is a list of
instructions, each of which is a kernel on the device, a loop over another computation, or only a name for what is there.
"""

import math
import re
from collections.abc import Iterator
from typing import NamedTuple

BYTES = dict.fromkeys(("pred", "s8", "u8"), 1) | dict.fromkeys(("bf16", "f16", "s16", "u16"), 2)
BYTES |= dict.fromkeys(("s32", "u32", "f32"), 4) | dict.fromkeys(("s64", "u64", "f64"), 8)
# Only names, or places; what ends with `-done` waits for a kernel that is counted where it starts.
NO_KERNEL = frozenset(
    "parameter get-tuple-element tuple constant bitcast after-all opt-barrier optimization-barrier partition-id "
    "add-dependency".split()
)
NO_ARITHMETIC = NO_KERNEL | frozenset(
    "broadcast reshape transpose slice dynamic-slice dynamic-update-slice concatenate pad copy iota reverse gather "
    "fusion call".split()
)
CUTS = frozenset(("dynamic-slice", "slice", "gather"))  # they read what they give, not all that they are given


class Shape(NamedTuple):
    """Of an array."""

    dtype: str
    dims: tuple[int, ...]

    @property
    def elements(self) -> int:
        return math.prod(self.dims)

    @property
    def bytes(self) -> int:
        return self.elements * BYTES.get(self.dtype, 0)


class Instruction(NamedTuple):
    """A line of a computation: what it gives, by which operation, from which others, with which attributes."""

    name: str
    shapes: tuple[Shape, ...]
    operation: str
    operands: tuple[str, ...]
    attributes: str

    def attribute(self, name: str) -> str | None:
        """The computation that an attribute names."""
        found = re.search(rf"\b{name}=%?([\w.\-]+)", self.attributes)
        return found and found[1]


class Kernel(NamedTuple):
    """One launch: bytes that it reads and writes, operations that it issues, threads that share these, cycles if told."""

    name: str
    bytes: int
    operations: int
    threads: int
    cycles: int


def bundles_of_loop(text: str) -> int:
    """Instruction words of the longest of the innermost loops of a kernel for TPUs, as its final schedule lists them.

    A line begins with the word's address; where a loop begins, it has LB, as many > as there are loops around it, and the
    number of its region, which the jump at its end names.
    """
    begun, loops = {}, []
    for line in text.splitlines():
        if not (address := re.match(r"\s*(0x[0-9a-f]+|\d+)\s+(?:LB)?: (>*)", line)):
            continue
        place, depth = int(address[1], 0), len(address[2])
        if " LB: " in line:
            begun |= {region: (place, depth) for region in re.findall(r"Start region (\d+)", line)}
        for region in re.findall(r"sbr\.rel \(!?%\w+\) target = \$region(\d+)", line):
            if region in begun:
                first, depth = begun[region]
                loops.append((depth, place - first + 1))
    return max(loops)[1]


Computation = dict[str, Instruction]  # by name, in the order of the text


def _closing(text: str, start: int) -> int:
    """Where the bracket closes that opens at `start`."""
    depth = 0
    for i in range(start, len(text)):
        depth += (text[i] == "(") - (text[i] == ")")
        if depth == 0:
            return i
    raise ValueError(f"no end of {text[start : start + 80]!r}")


def _read_line(line: str) -> Instruction | None:
    found = re.match(r"\s*(?:ROOT )?%?([\w.\-]+) = ", line)
    if not found:
        return None
    begin = found.end()
    end = _closing(line, begin) + 1 if line[begin] == "(" else line.index(" ", begin)
    kind, rest = line[begin:end], line[end:].lstrip()
    opening = rest.index("(")
    closing = _closing(rest, opening)
    shapes = tuple(
        Shape(dtype, tuple(int(size) for size in dims.split(",") if size))
        for dtype, dims in re.findall(r"\b([a-z]+\d*\w*)\[([\d,]*)\]", kind)
    )
    operands = tuple(re.findall(r"%([\w.\-]+)", rest[opening:closing]))
    return Instruction(found[1], shapes, rest[:opening], operands, rest[closing + 1 :] + " " + rest[opening:closing])


class Compiled:
    """The computations of a program's text.

    Attributes:
      text: as XLA gives it.
      open_loops: names of loops that were counted once, because their turns hang on data.
    """

    def __init__(self, text: str):
        self.text, self.computations, self.entry, self.open_loops = text, {}, "", set()
        own: Computation = {}
        for line in text.splitlines():
            header = re.match(r"(ENTRY )?%?([\w.\-]+) (?:\(.*)?.*\{$", line)
            if header and not line.startswith((" ", "HloModule")):
                own = self.computations[header[2]] = {}
                self.entry = header[2] if header[1] else self.entry
            elif instruction := _read_line(line):
                own[instruction.name] = instruction

    def kernels(self, computation: str | None = None) -> Iterator[tuple[int, Kernel]]:
        """What a computation, by default the program, launches: how often, and what. Loops count as often as they turn."""
        own = self.computations[computation or self.entry]
        for each in own.values():
            if each.operation == "while":
                turns = self.turns(each)
                yield from ((turns * times, kernel) for times, kernel in self.kernels(each.attribute("body")))
            elif each.operation in ("call", "async-start"):
                yield from self.kernels(each.attribute("to_apply") or each.attribute("calls"))
            elif each.operation == "conditional":
                yield from max((list(self.kernels(branch)) for branch in self._branches(each)), key=len)
            elif each.operation not in NO_KERNEL and not each.operation.endswith("-done"):
                yield 1, self._kernel(each, own)

    def longest_loop(self) -> str:
        """The body of the loop, of those that the program runs itself, that turns most often."""
        loops = [each for each in self.computations[self.entry].values() if each.operation == "while"]
        return max(loops, key=self.turns).attribute("body")

    def rounded_products(self) -> int:
        """Products of float32 matrices whose operands are rounded first: those that are not at highest precision."""
        products = [
            each
            for own in self.computations.values()
            for each in own.values()
            if each.operation in ("dot", "convolution") or "gemm" in each.attributes.partition("custom_call_target")[2][:40]
        ]
        exact = re.compile(r"highest,\s*highest|HIGHEST\W+HIGHEST")
        return sum(any(s.dtype == "f32" for s in each.shapes) and not exact.search(each.attributes) for each in products)

    def turns(self, loop: Instruction) -> int:
        """How often a loop turns: as XLA notes it, else by the constant that its condition compares with.

        1 where data decide; such a loop is noted in `open_loops`.
        """
        if noted := re.search(r"known_trip_count[^\d]*(\d+)", loop.attributes):
            return int(noted[1])
        bounds = [
            int(found[1])
            for each in self._inside(loop.attribute("condition"))
            if each.operation == "constant" and (found := re.search(r"\((\d+)\b", each.attributes))
        ]
        if len(bounds) != 1:
            self.open_loops.add(loop.name)
            return 1
        return bounds[0]

    def _branches(self, conditional: Instruction) -> list[str]:
        listed = re.search(r"branch_computations=\{([^}]*)\}", conditional.attributes)
        if listed:
            return re.findall(r"%?([\w.\-]+)", listed[1])
        return [conditional.attribute("true_computation"), conditional.attribute("false_computation")]

    def _inside(self, computation: str) -> Iterator[Instruction]:
        """All instructions of a computation and of what it calls."""
        for each in self.computations[computation].values():
            yield each
            inner = each.attribute("calls") or each.attribute("to_apply")
            if inner in self.computations and each.operation in ("fusion", "call"):
                yield from self._inside(inner)

    def _kernel(self, each: Instruction, own: Computation) -> Kernel:
        given = sum(shape.bytes for shape in each.shapes)
        taken = [sum(shape.bytes for shape in own[name].shapes) for name in each.operands if name in own]
        cycles = re.search(r'estimated_cycles":"(\d+)"', each.attributes)
        fused = self.computations.get(each.attribute("calls") or "")
        if fused is None:
            moved, operations = given + sum(taken), arithmetic(each, own)
            if each.operation in CUTS:
                moved = 2 * given
        else:
            moved = sum(map(self._read, *zip(*_parameters(fused)), [fused] * len(taken), taken)) if taken else 0
            moved += _written(fused, given)
            inner = [(inside, self._owner(fused, inside)) for inside in self._inside(each.attribute("calls"))]
            operations = sum(arithmetic(inside, where) for inside, where in inner)
        elements = max((shape.elements for shape in each.shapes), default=1)
        # A plain loop has a thread an element; others share what they reduce or multiply.
        shared = "kind=kLoop" not in each.attributes and fused is not None
        threads = max(elements, operations // 32) if shared else elements
        return Kernel(each.name, moved, operations, max(1, threads), int(cycles[1]) if cycles else 0)

    def _owner(self, fused: Computation, inside: Instruction) -> Computation:
        if inside.name in fused:
            return fused
        return next(own for own in self.computations.values() if own.get(inside.name) is inside)

    def _read(self, number: int, parameter: str, fused: Computation, whole: int) -> int:
        """Bytes that a fusion reads of an operand."""
        users = [each for each in fused.values() if parameter in each.operands]
        if users and all(each.operation in CUTS and each.operands[0] == parameter for each in users):
            return min(whole, sum(shape.bytes for each in users for shape in each.shapes))
        if users and all(each.operation == "dynamic-update-slice" and each.operands[0] == parameter for each in users):
            return 0
        return whole


def _parameters(fused: Computation) -> list[tuple[int, str]]:
    """Numbers and names of a fusion's parameters, in their order."""
    found = []
    for each in fused.values():
        if each.operation == "parameter":
            found.append((int(re.search(r"\((\d+)", each.attributes)[1]), each.name))
    return sorted(found)


def _written(fused: Computation, given: int) -> int:
    """Bytes that a fusion writes: of an array that it updates in place, the part that is new."""
    updates = [each for each in fused.values() if each.operation == "dynamic-update-slice"]
    in_place = sum(shape.bytes for each in updates for shape in each.shapes)
    new = sum(shape.bytes for each in updates for shape in fused[each.operands[1]].shapes)
    return max(0, given - in_place) + new if in_place <= given else given


def arithmetic(each: Instruction, own: Computation) -> int:
    """Operations of an instruction on numbers: of a product two for each term, of a sum one, else one an element."""
    elements = max((shape.elements for shape in each.shapes), default=0)
    if each.operation in NO_ARITHMETIC:
        return 0
    if each.operation in ("reduce", "reduce-window"):
        return max((shape.elements for name in each.operands if name in own for shape in own[name].shapes), default=0)
    if each.operation == "dot":
        left = own[each.operands[0]].shapes[0].dims
        axes = re.search(r"lhs_contracting_dims=\{([\d,]*)\}", each.attributes)[1]
        return 2 * elements * math.prod(left[int(axis)] for axis in axes.split(",") if axis)
    return elements
