#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Finds what makes tests pass in silence, or fail on a busy machine.

skip          a skip that CI does not know of, or a failure that is expected
setns         a test's own process in another network namespace
port          a port that was free, and may no longer be
two-readings  an assertion that compares two readings of clocks as if one
              were the other
"""

import argparse
import ast
from collections.abc import Callable, Iterator
import pathlib
import re
import sys
import typing as ty

ADVICE = {
    'skip': "call requirement.need() or requirement.undecided(), or use the "
            "mark 'requires'",
    'setns': 'start a program in the namespace, by nsenter',
    'port': 'use ports.kept(), or let the service listen on port 0',
    'two-readings': 'allow for what passes between them, by a constant named '
                    'SLACK, or use readings.between()',
}
_SKIPS = {'pytest.skip', 'pytest.importorskip', 'unittest.skip',
          'unittest.skipIf', 'unittest.skipUnless', 'unittest.SkipTest',
          'self.skipTest', 'pytest.xfail', 'unittest.expectedFailure'}
_SKIPPING_MARKS = {'pytest.mark.skip', 'pytest.mark.skipif',
                   'pytest.mark.xfail'}
# Whose only task they are.
_OWNERS = {'skip': 'requirement.py', 'port': 'ports.py'}
_NETWORKS = re.compile(
    r'(^|\.)(setns|join_network|controller_network)$|^daemons\.network$')
_FREE_PORT = re.compile(r'(^|\.)_?free_ports?$')
_CLOCK = re.compile(
    r'^(time\.)?(monotonic|perf_counter|thread_time|process_time)(_ns)?$'
    r'|^time\.time(_ns)?$|(^|\.)datetime\.(now|utcnow)$')
# By our names: when something was read. Two in order are no comparison of
# two readings that may be off, their difference is.
_READ_AT = re.compile(r'_at_n?s$')
_SLACK = re.compile('slack|rounding|tolerance', re.IGNORECASE)
# Whose result is a reading, or a difference of two, as their arguments are.
_KEEP = {'abs', 'float', 'int', 'max', 'min', 'round', 'sum'}
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


class Finding(ty.NamedTuple):
    """:ivar rule: of ADVICE"""

    line: int
    rule: str


def dotted(node: ast.AST) -> str:
    """:returns: of a.b.c that text, '' of anything else"""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        before = dotted(node.value)
        return f'{before}.{node.attr}' if before else f'?.{node.attr}'
    return ''


def skips(tree: ast.Module) -> Iterator[int]:
    # As pytest.skip of pytest.skip.Exception.
    parts = {node.value for node in ast.walk(tree)
             if isinstance(node, ast.Attribute)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            if any(f'{node.module}.{name.name}' in _SKIPS
                   for name in node.names):
                yield node.lineno
        elif node not in parts and dotted(node) in _SKIPS | _SKIPPING_MARKS:
            # Also where it is raised, or decorates, without a call.
            yield ty.cast(ast.expr, node).lineno


def namespaces(tree: ast.Module) -> Iterator[int]:
    if any(isinstance(node, ast.Compare) and dotted(node.left) == '__name__'
           for node in ast.walk(tree)):
        # A program of its own.
        return
    for node in ast.walk(tree):
        if _NETWORKS.search(dotted(node)):
            yield ty.cast(ast.expr, node).lineno


def free_ports(tree: ast.Module) -> Iterator[int]:
    """Uses of such functions, and returns that close the socket."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _FREE_PORT.search(dotted(node.func)):
            yield node.lineno
        elif isinstance(node, ast.With):
            yield from (
                one.lineno for part in node.body for one in ast.walk(part)
                if isinstance(one, ast.Return) and any(
                    dotted(call).endswith('.getsockname')
                    for call in ast.walk(one)))


def two_readings(tree: ast.Module) -> Iterator[int]:
    yield from _two_readings(tree, frozenset())


def _two_readings(scope: ast.AST, known: frozenset[str]) -> Iterator[int]:
    """:param known: names of readings, of what the scope is in"""
    own = list(_own(scope))
    names, before = known, None
    while names != before:
        before = names
        names |= {name for node in own for name in _assigned(node, names)}
        # Lists, which functions within may fill.
        names |= {name for node in ast.walk(scope)
                  for name in _appended(node, names)}
    for node in own:
        if isinstance(node, ast.Assert):
            yield from (one.lineno for one in ast.walk(node.test)
                        if isinstance(one, ast.Compare)
                        and _compares_two(one, names))
        if isinstance(node, _FUNCTIONS):
            yield from _two_readings(node, names)


def _own(scope: ast.AST) -> Iterator[ast.AST]:
    """All within, but for what is within functions."""
    for node in ast.iter_child_nodes(scope):
        yield node
        if not isinstance(node, _FUNCTIONS):
            yield from _own(node)


def _assigned(node: ast.AST, names: frozenset[str]) -> Iterator[str]:
    """:returns: names that a statement gives to readings"""
    if isinstance(node, ast.Assign):
        pairs = [(target, node.value) for target in node.targets]
    elif isinstance(node, (ast.AnnAssign, ast.NamedExpr)) and node.value:
        pairs = [(node.target, node.value)]
    else:
        return
    for target, value in pairs:
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            pairs.extend(zip(target.elts, value.elts, strict=False))
        elif isinstance(target, ast.Name) and _is_reading(value, names):
            yield target.id


def _appended(node: ast.AST, names: frozenset[str]) -> Iterator[str]:
    if (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
            and node.func.attr == 'append'
            and isinstance(node.func.value, ast.Name)
            and any(_is_reading(one, names) for one in node.args)):
        yield node.func.value.id


def _is_reading(node: ast.expr, names: frozenset[str]) -> bool:
    """Whether it is one, or derives from some and from nothing else.

    A reading and a number of seconds are a bound, and so are no reading.
    """
    if isinstance(node, ast.Name):
        return node.id in names
    if isinstance(node, ast.Subscript):
        return _is_reading(node.value, names)
    if isinstance(node, ast.Call):
        name = dotted(node.func)
        return bool(_CLOCK.search(name)) or name in _KEEP and any(
            _is_reading(one, names) for one in node.args)
    if isinstance(node, ast.UnaryOp):
        return _is_reading(node.operand, names)
    if isinstance(node, ast.BinOp):
        if isinstance(node.op, ast.Sub) and all(
                isinstance(one, ast.Attribute) and _READ_AT.search(one.attr)
                for one in (node.left, node.right)):
            return True
        sides = [_is_reading(one, names) for one in (node.left, node.right)]
        if isinstance(node.op, ast.Div):
            # By a reading: a rate.
            return sides == [True, False]
        return (all(sides) if isinstance(node.op, (ast.Add, ast.Sub))
                else any(sides))
    return False


def _compares_two(node: ast.Compare, names: frozenset[str]) -> bool:
    operands = [node.left, *node.comparators]
    return any(
        isinstance(operator, (ast.Eq, ast.Lt, ast.LtE, ast.Gt, ast.GtE))
        and _is_reading(left, names) and _is_reading(right, names)
        and not any(_SLACK.search(dotted(one)) for side in (left, right)
                    for one in ast.walk(side))
        for left, operator, right in zip(
            operands, node.ops, operands[1:], strict=False))


_RULES: dict[str, Callable[[ast.Module], Iterator[int]]] = {
    'skip': skips, 'setns': namespaces, 'port': free_ports,
    'two-readings': two_readings}


def lint(path: str, text: str) -> list[Finding]:
    """:returns: what is wrong with a file, by line"""
    tree = ast.parse(text, path)
    return sorted({Finding(line, rule) for rule, look in _RULES.items()
                   if pathlib.PurePath(path).name != _OWNERS.get(rule)
                   for line in look(tree)})


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('files', nargs='*', metavar='FILE')
    found = False
    for path in parser.parse_args(arguments).files:
        for line, rule in lint(path, pathlib.Path(path).read_text('utf-8')):
            print(f'{path}:{line}: {rule}: {ADVICE[rule]}')
            found = True
    return int(found)


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
