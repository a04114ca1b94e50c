# SPDX-License-Identifier: Apache-2.0
"""The mutants of a module: tools/mutate.py says which."""

import ast
from collections.abc import Iterator
import dataclasses
import difflib
import typing as ty

import libcst as cst
from libcst import metadata
from mutmut.mutation import mutators

_NOT_MUTATED = (cst.Annotation | cst.Decorator | cst.Import | cst.ImportFrom)
_STRINGS = cst.SimpleString | cst.FormattedString | cst.ConcatenatedString


@dataclasses.dataclass(frozen=True)
class Mutant:
    """A module with one change.

    :ivar function: first line of the outermost function that has it; None:
        it is outside of all
    :ivar change: lines of a diff
    """

    line: int
    function: int | None
    change: str
    source: str


def make(source: str) -> list[Mutant]:
    """All mutants of a module that differ from it and from each other."""
    wrapper = metadata.MetadataWrapper(cst.parse_module(source))
    collector = _Collector()
    wrapper.visit(collector)
    original = ast.parse(source)
    seen = {ast.dump(original)}
    mutants = []
    for line, node, new in collector.found:
        mutated = ty.cast(cst.Module,
                          wrapper.module.deep_replace(node, new)).code
        try:
            tree = ast.dump(ast.parse(mutated))
        except SyntaxError:
            continue
        if tree not in seen:
            seen.add(tree)
            mutants.append(Mutant(line, _function_at(original, line),
                                  _change(source, mutated), mutated))
    return sorted(mutants, key=lambda mutant: mutant.line)


def recording(source: str) -> str:
    """A module that calls record_call with the first line of a function.

    Of each that is called; it is to be found in builtins.
    """
    tree = ast.parse(source)
    for node in _functions(tree):
        node.body[:0] = ast.parse(f'record_call({node.lineno})').body
    return ast.unparse(tree)


class _Collector(cst.CSTVisitor):
    """Collects nodes, and by what to replace them.

    :ivar found: line, node, new node
    """

    METADATA_DEPENDENCIES = (metadata.PositionProvider,)

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[int, cst.CSTNode, cst.CSTNode]] = []

    def on_visit(self, node: cst.CSTNode) -> bool:
        if (isinstance(node, _NOT_MUTATED) or _is_prose(node) or _is_log(node)
                or _is_type(node)):
            return False
        if _is_cast(node):
            node.args[1].visit(self)
            return False
        position = self.get_metadata(metadata.PositionProvider, node, None)
        if position is not None:
            self.found += [(position.start.line, node, new)
                           for new in _replacements(node)
                           if not _drops_prose(node, new)]
        return True


def _replacements(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    for kind, operator in mutators.mutation_operators:
        if isinstance(node, kind):
            found = list(operator(node))
            # Of a string not also those in upper and in lower case.
            yield from found[:1] if kind is cst.BaseString else found
    if isinstance(node, cst.If | cst.While):
        yield node.with_changes(test=cst.UnaryOperation(
            cst.Not(), node.test.with_changes(
                lpar=[cst.LeftParen()], rpar=[cst.RightParen()])))
    if isinstance(node, cst.Expr) and isinstance(node.value, cst.Call):
        yield cst.Pass()


def _is_prose(node: cst.CSTNode) -> bool:
    return isinstance(node, _STRINGS) and (
        ' ' in cst.Module([]).code_for_node(node))


def _is_type(node: cst.CSTNode) -> bool:
    """Whether it is the name of a type."""
    return (isinstance(node, cst.AnnAssign) and cst.Module([]).code_for_node(
        node.annotation.annotation) == 'ty.TypeAlias')


def _is_cast(node: cst.CSTNode) -> ty.TypeGuard[cst.Call]:
    return isinstance(node, cst.Call) and cst.Module([]).code_for_node(
        node.func) == 'ty.cast'


def _is_log(node: cst.CSTNode) -> bool:
    """Whether it writes to the log, or makes it."""
    if isinstance(node, cst.Expr):
        return _is_log(node.value)
    if isinstance(node, cst.Assign):
        return _is_named_log(node.targets[0].target)
    return (isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute)
            and _is_named_log(node.func.value))


def _is_named_log(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.Name) and node.value == 'LOG'


def _drops_prose(node: cst.CSTNode, new: cst.CSTNode) -> bool:
    if not (isinstance(node, cst.Call) and isinstance(new, cst.Call)):
        return False
    kept = {id(argument) for argument in new.args}
    return any(_is_prose(argument.value) and id(argument) not in kept
               for argument in node.args)


def _functions(tree: ast.Module | ast.ClassDef) -> Iterator[ast.FunctionDef]:
    """Functions and methods, but for those within others."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            yield from _functions(node)
        elif isinstance(node, ast.FunctionDef):
            yield node


def _function_at(tree: ast.Module, line: int) -> int | None:
    """See :class:`Mutant`."""
    for node in _functions(tree):
        first = min([node.lineno, *(decorator.lineno for decorator
                                    in node.decorator_list)])
        if first <= line <= (node.end_lineno or 0):
            return node.lineno
    return None


def _change(source: str, mutated: str) -> str:
    return '\n'.join(line for line in difflib.unified_diff(
        source.splitlines(), mutated.splitlines(), n=0, lineterm='')
        if not line.startswith(('---', '+++', '@@')))
