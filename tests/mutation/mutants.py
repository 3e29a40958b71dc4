"""Simple mutants of a module: one small change of its syntax tree each, which a test should detect.

Kinds   comparison   < becomes <= and >=, == becomes !=, in becomes not in
        arithmetic   + and -, * and /, & and | are exchanged
        sign         -x becomes x, ~x becomes x
        constant     a number plus one, True and False exchanged; default arguments and fields are among them
        condition    the condition of an if or a while is negated
        filter       the condition of a comprehension is negated
        not          a `not` is removed
        boolean      and, or are exchanged

Annotations, decorators, messages of `raise` and the `strict` argument of `zip` are not changed: callers do not rely on
them.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
LEFT_ALONE = ("annotation", "returns", "decorator_list", "type_params")
Change = Callable[[ast.AST], None]


@dataclass(frozen=True)
class Mutant:
    """One change; `name` identifies it as long as the module stays the same."""

    name: str
    kind: str
    line: int
    place: int  # of the node in `_nodes`
    change: Change

    def tree(self, source: str) -> ast.Module:
        """The changed syntax tree."""
        tree = ast.parse(source)
        self.change(_nodes(tree)[self.place])
        return ast.fix_missing_locations(tree)


def mutants_of(source: str) -> list[Mutant]:
    """All mutants of a module, in the order of its text."""
    found = []
    for place, node in enumerate(_nodes(ast.parse(source))):
        for kind, after, change in _changes(node):
            shown = node.ifs[0] if isinstance(node, ast.comprehension) else node  # a comprehension has no line itself
            line, column = getattr(shown, "lineno", 0), getattr(shown, "col_offset", 0)
            before = ast.unparse(shown).splitlines()[0][:60]
            kind = "filter" if shown is not node else kind
            found.append(Mutant(f"{line}:{column} {kind} [{before}] -> {after}", kind, line, place, change))
    found.sort(key=lambda mutant: (mutant.line, mutant.name))
    times: Counter[str] = Counter()
    for place, mutant in enumerate(found):  # equal changes of one expression, such as of both parts of a < b < c
        times[mutant.name] += 1
        if times[mutant.name] > 1:
            found[place] = replace(mutant, name=f"{mutant.name} ({times[mutant.name]})")
    return found


def _nodes(tree: ast.AST) -> list[ast.AST]:
    """The nodes that may change, always in the same order."""
    return list(_walk(tree))


def _walk(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    for name, value in ast.iter_fields(node):
        if name in LEFT_ALONE or isinstance(node, ast.Raise):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not (isinstance(child, ast.keyword) and child.arg == "strict"):
                yield from _walk(child)


def _changes(node: ast.AST) -> Iterator[tuple[str, str, Change]]:
    match node:
        case ast.Compare():
            for position, operator in enumerate(node.ops):
                for other in COMPARISONS[type(operator)]:
                    yield "comparison", other.__name__, _comparison(position, other)
        case ast.BinOp() if type(node.op) in ARITHMETIC:
            after = ARITHMETIC[type(node.op)]
            yield "arithmetic", after.__name__, _operator(after)
        case ast.AugAssign() if type(node.op) in ARITHMETIC:
            after = ARITHMETIC[type(node.op)]
            yield "arithmetic", after.__name__, _operator(after)
        case ast.UnaryOp() if not isinstance(node.op, ast.UAdd):
            kind = "not" if isinstance(node.op, ast.Not) else "sign"
            yield kind, "removed", _replace_operator(ast.UAdd if kind == "sign" else None)
        case ast.Constant() if isinstance(node.value, bool):
            yield "constant", str(not node.value), _constant(not node.value)
        case ast.Constant() if isinstance(node.value, int | float):
            yield "constant", str(node.value + 1), _constant(node.value + 1)
        case ast.BoolOp():
            after_bool = ast.Or if isinstance(node.op, ast.And) else ast.And
            yield "boolean", after_bool.__name__, _operator(after_bool)
        case ast.If() | ast.While() | ast.IfExp():
            yield "condition", "negated", _negated
        case ast.comprehension() if node.ifs:
            yield "condition", "negated", _negated_filter


def _comparison(position: int, other: type[ast.cmpop]) -> Change:
    def change(node: ast.AST) -> None:
        assert isinstance(node, ast.Compare)
        node.ops[position] = other()

    return change


def _operator(other: type[ast.AST]) -> Change:
    def change(node: ast.AST) -> None:
        node.op = other()  # type: ignore[attr-defined]

    return change


def _replace_operator(other: type[ast.unaryop] | None) -> Change:
    """`not x` becomes `not not x`, which is x as a truth value; `-x` becomes `+x`; `~x` becomes `~~x`."""

    def change(node: ast.AST) -> None:
        assert isinstance(node, ast.UnaryOp)
        if other is not None and isinstance(node.op, ast.USub):
            node.op = other()
        else:
            node.operand = ast.UnaryOp(op=node.op, operand=node.operand)

    return change


def _constant(value: object) -> Change:
    def change(node: ast.AST) -> None:
        assert isinstance(node, ast.Constant)
        node.value = value  # type: ignore[assignment]

    return change


def _negated(node: ast.AST) -> None:
    assert isinstance(node, ast.If | ast.While | ast.IfExp)
    node.test = ast.UnaryOp(op=ast.Not(), operand=node.test)


def _negated_filter(node: ast.AST) -> None:
    assert isinstance(node, ast.comprehension)
    node.ifs[0] = ast.UnaryOp(op=ast.Not(), operand=node.ifs[0])
