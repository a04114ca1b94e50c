#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0

"""Measures how straight the ways through nova_vqos are.

Most figures come from the sources; --trace adds calls in the worlds of the
unit tests. Tests do not count, but for the last lines.

circles: groups of parts that import each other in a circle. A part is
    a folder. In the package itself, and in a folder that has folders, each
    module is a part.
floors: the longest chain of rooms of which each imports the next. A room is
    a folder of the package with all below it, or a module of the package.
    Circles are broken first: their weakest arrows go, which are those of the
    fewest pairs of modules, all of one weight at once.
floors_folders: the same, each folder below a room for itself.
agent_files: modules directly in agent/.
agent_floors: the longest chain of modules of agent/.
foreign_writes: attributes of classes with a server's state (STATE) that are
    assigned by others than the owner: in agent/FOLDER/ the folder, else the
    file. The class is known by an annotation; without one, each class of the
    agent counts that has such an attribute.
any_foreign_writes: the same of all classes of agent/, the owner is the file.
raw_fields: lines of READERS with x['name'] or x.get('name'), where the name is
    one of raw_field_names: a key of a dict, or a field, that REPLIES make.
    NOT_OURS read replies of Nova and Placement.
boot: files that calls enter from the event of a server that starts until its
    cap is read back; boot_agent: those in agent/; boot_hops: calls from
    a file into another.
bill: the same of the tick whose bill makes the quota smaller. Of several such
    ticks that with the fewest files counts, without a heartbeat and a sample.
code_, lines_: lines without and with comments and blank lines.
"""

import argparse
import ast
import collections
from collections.abc import Callable, Iterable, Mapping
import functools
import importlib
import json
import logging
import pathlib
import re
import sys
import tempfile
import typing as ty

NAME = 'nova_vqos'

# All that depends on the layout; a pattern without a match does no harm.
STATE = re.compile(r'Server$|State$')
MESSAGES = 'agent/messages/'
REPLIES = (f'{MESSAGES}*.py', 'agent/snapshot.py', 'agent/host.py',
           'agent/manager.py', 'agent/overrides/*.py', 'agent/follow*.py',
           'agent/push*.py')
READERS = ('manage/*.py', 'status/*.py', 'metrics/*.py', 'cmd/manage/*.py',
           'cmd/status/*.py')
NOT_OURS = {'cloud.py', 'command.py', 'demand.py', 'flavors.py',
            'importing.py'}
WORLDS = (('fixtures.agent', 'fixtures.billing', 'fixtures.fakes'),
          ('unit.agent_world', 'unit.billing_world', 'unit.fake_hypervisor'))

Arrow = tuple[str, str]
Figures = dict[str, list[str] | int]


class Sources:
    """The parsed files of the package, without tests."""

    def __init__(self, root: pathlib.Path) -> None:
        self.package = root / NAME
        self.trees = {
            str(path.relative_to(self.package)): ast.parse(path.read_text())
            for path in sorted(self.package.rglob('*.py'))
            if 'tests' not in path.relative_to(root).parts}
        modules = {'.'.join((NAME, *file.removesuffix('.py').removesuffix(
            '__init__').strip('/').split('/'))).strip('.'): file
                   for file in self.trees}
        self.imports = {file: set(self._imports(tree, modules)) - {file}
                        for file, tree in self.trees.items()}

    @staticmethod
    def _imports(tree: ast.AST, modules: Mapping[str, str]) -> Iterable[str]:
        for node in ast.walk(tree):
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                of = getattr(node, 'module', None)
                for one in node.names:
                    full = f'{of}.{one.name}' if of else one.name
                    if full in modules or of in modules:
                        yield modules.get(full) or modules[of]

    def matching(self, patterns: Iterable[str]) -> list[str]:
        return sorted(str(path.relative_to(self.package))
                      for one in patterns for path in self.package.glob(one))

    def arrows(self, part: Callable[[str], str] = str, below: str = ''
               ) -> Mapping[Arrow, int]:
        """:returns: how many files of a part import one of another"""
        return collections.Counter(
            (part(file), part(other))
            for file, others in self.imports.items() for other in others
            if part(file) != part(other) and file.startswith(below)
            and other.startswith(below))

    # Parts.

    def room(self, file: str) -> str:
        return file.split('/')[0]

    def folder(self, file: str) -> str:
        return file.rpartition('/')[0] or file

    def part(self, file: str) -> str:
        folder = self.folder(file)
        return file if any(self.folder(other).startswith(f'{folder}/')
                           for other in self.trees) else folder

    def owner(self, file: str) -> str:
        return '/'.join(file.split('/')[:2])


def circles(arrows: Iterable[Arrow]) -> set[frozenset[str]]:
    after = collections.defaultdict(set)
    for one, other in arrows:
        after[one].add(other)

    def reached(start: str) -> set[str]:
        found, todo = set(), {start}
        while todo:
            todo = set().union(*(after.get(one, ()) for one in todo)) - found
            found |= todo
        return found
    reach = {one: reached(one) for one in list(after)}
    return {frozenset(other for other in found if one in reach.get(other, ()))
            for one, found in reach.items() if one in found}


def chain(arrows: Mapping[Arrow, int]) -> list[str]:
    """:returns: the longest one, circles broken where they are weakest"""
    left = dict(arrows)
    while found := circles(left):
        inside = {pair: weight for pair, weight in left.items()
                  if any(set(pair) <= circle for circle in found)}
        weakest = min(inside.values())
        left = {pair: weight for pair, weight in left.items()
                if inside.get(pair) != weakest}

    @functools.cache
    def below(one: str) -> list[str]:
        return [one, *max((below(other) for first, other in sorted(left)
                           if first == one), key=len, default=())]
    return max((below(one) for one, _ in sorted(left)), key=len, default=[])


def fields(tree: ast.AST) -> dict[str, set[str]]:
    """:returns: by class, the attributes that its instances get"""
    return {one.name: {
        *(node.target.id for node in one.body
          if isinstance(node, ast.AnnAssign)),
        *(node.attr for node in ast.walk(one)
          if isinstance(node, ast.Attribute)
          and isinstance(node.ctx, ast.Store)
          and ast.unparse(node.value) == 'self')}
            for one in ast.walk(tree) if isinstance(one, ast.ClassDef)
            and 'ty.NamedTuple' not in map(ast.unparse, one.bases)}


def annotated(tree: ast.AST) -> dict[str, set[str]]:
    """:returns: by variable with a type, or made of one, words of its type"""
    found = collections.defaultdict(set)
    for node in ast.walk(tree):
        if isinstance(node, ast.arg) and node.annotation:
            words = re.findall(r'\w+', ast.unparse(node.annotation))
            found[node.arg].update(words)
        elif isinstance(node, ast.AnnAssign):
            words = re.findall(r'\w+', ast.unparse(node.annotation))
            found[ast.unparse(node.target)].update(words)
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            # An item of a mapping has its type among the mapping's words.
            made_of = (node.value.value if isinstance(
                node.value, ast.Subscript) else node.value)
            if isinstance(made_of, ast.Name | ast.Attribute):
                found[ast.unparse(node.targets[0])] |= found[
                    ast.unparse(made_of)]
    return found


def foreign_writes(sources: Sources, pattern: re.Pattern[str],
                   owner: Callable[[str], str]) -> list[str]:
    agent = {file: tree for file, tree in sources.trees.items()
             if file.startswith('agent/')}
    classes = [(file, name, held) for file, tree in agent.items()
               for name, held in fields(tree).items()]
    found = collections.defaultdict(set)
    for file, tree in agent.items():
        types = annotated(tree)
        for node in ast.walk(tree):
            if not (isinstance(node, ast.Attribute)
                    and isinstance(node.ctx, (ast.Store, ast.Del))):
                continue
            of = ast.unparse(node.value)
            named = types[of] & {name for _, name, _ in classes}
            if of not in ('self', 'cls') and any(
                    node.attr in held and pattern.search(name)
                    and owner(home) != owner(file)
                    and (not named or name in named)
                    for home, name, held in classes):
                found[node.attr].add(file)
    return [f'{attr}: {", ".join(sorted(by))}' for attr, by in found.items()]


def raw_fields(sources: Sources) -> Figures:
    names = set()
    for file in sources.matching(REPLIES):
        for node in ast.walk(sources.trees[file]):
            if isinstance(node, ast.Dict):
                names |= {key.value for key in node.keys
                          if isinstance(key, ast.Constant)}
        if file.startswith(MESSAGES):
            names |= set().union(*fields(sources.trees[file]).values())
    read = []
    for file in sources.matching(READERS):
        for node in ast.walk(sources.trees[file]):
            key = None
            if isinstance(node, ast.Subscript):
                key = isinstance(node.ctx, ast.Load) and node.slice
            elif isinstance(node, ast.Call) and node.args:
                key = (getattr(node.func, 'attr', '') == 'get'
                       and node.args[0])
            if (isinstance(key, ast.Constant) and key.value in names
                    and file.rpartition('/')[2] not in NOT_OURS):
                read.append((f'{file}:{node.lineno}', key.value))
    return {'raw_fields': list({line for line, _ in read}),
            'raw_field_names': list({name for _, name in read})}


class Calls:
    """Files of the package that calls enter while this context lasts."""

    def __init__(self, package: pathlib.Path) -> None:
        self.files: set[str] = set()
        self.hops = 0
        self._start = f'{package}/'

    def __enter__(self) -> 'Calls':
        sys.setprofile(self._called)
        return self

    def __exit__(self, *_error: object) -> None:
        sys.setprofile(None)

    def _file(self, frame: ty.Any) -> str:
        path = frame.f_code.co_filename
        return path.removeprefix(self._start) if path.startswith(
            self._start) else ''

    def _called(self, frame: ty.Any, event: str, _argument: object) -> None:
        file, caller = self._file(frame), frame.f_back
        if (event != 'call' or not file or file.startswith('tests/')
                or frame.f_code.co_name == '<module>'):
            return
        self.files.add(file)
        while caller and not self._file(caller):
            caller = caller.f_back
        self.hops += bool(caller) and not self._file(caller).startswith(
            (file, 'tests/'))

    def figures(self, name: str) -> Figures:
        return {name: list(self.files), f'{name}_hops': self.hops,
                f'{name}_agent': [file for file in self.files
                                  if file.startswith('agent/')]}


def traced(root: pathlib.Path, directory: pathlib.Path) -> Figures:
    tests = root / NAME / 'tests'
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(root))
    logging.disable()
    agent, billing, fakes = (
        importlib.import_module(f'{NAME}.tests.{one}') for one in next(
            names for names in WORLDS
            if (tests / (names[0].replace('.', '/') + '.py')).exists()))
    base = importlib.import_module(f'{NAME}.hypervisor.base')
    assert pathlib.Path(agent.__file__).is_relative_to(root), agent.__file__

    world = agent.World(directory / 'boot')
    world.start()
    world.host.boot(specs=fakes.make_specs())
    with Calls(root / NAME) as boot:
        world.host.event(base.EventKind.STARTED)
        world.settle()
    assert world.limits() == {agent.RIGHT}

    world = billing.World(directory / 'bill')
    world.boot()
    world.start()
    bills = []
    for _ in range(40):
        before = world.domain()
        with Calls(root / NAME) as tick:
            world.busy(1)
        if world.domain().quota_us < before.quota_us:
            bills.append(tick)
    bill = min(bills, key=lambda tick: (len(tick.files), tick.hops))
    return boot.figures('boot') | bill.figures('bill')


def lines(root: pathlib.Path) -> Figures:
    counted = collections.Counter()
    for path in (root / NAME).rglob('*.py'):
        is_test = 'tests' in path.relative_to(root).parts
        kind = 'tests' if is_test else 'package'
        text = path.read_text().splitlines()
        counted[f'lines_{kind}'] += len(text)
        counted[f'code_{kind}'] += sum(
            not re.match(r'\s*(#|$)', line) for line in text)
    return dict(sorted(counted.items()))


def measured(root: pathlib.Path, trace: bool) -> Figures:
    sources = Sources(root)
    found = {
        'circles': [', '.join(sorted(one))
                    for one in circles(sources.arrows(sources.part))],
        'floors': chain(sources.arrows(sources.room)),
        'floors_folders': chain(sources.arrows(sources.folder)),
        'agent_files': [file for file in sources.matching(['agent/*.py'])
                        if not file.endswith('__init__.py')],
        'agent_floors': chain(sources.arrows(below='agent/')),
        'foreign_writes': foreign_writes(sources, STATE, sources.owner),
        'any_foreign_writes': foreign_writes(sources, re.compile(''), str),
        **raw_fields(sources)}
    if trace:
        with tempfile.TemporaryDirectory() as directory:
            found |= traced(root, pathlib.Path(directory))
    return found | lines(root)


def main() -> None:
    """Print all figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog='''To compare with an older commit:
    git worktree add --detach DIR bacd191
    .venv/bin/python tools/house.py --trace --root DIR
    .venv/bin/python tools/house.py --trace''',
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--root', type=pathlib.Path, metavar='DIR',
                        default=pathlib.Path(__file__).parent.parent,
                        help='the tree to measure; default: that of this file')
    parser.add_argument('--trace', action='store_true',
                        help='trace calls, too')
    parser.add_argument('--list', action='store_true',
                        help='print what a figure counts, too')
    parser.add_argument('-f', dest='format', choices=('text', 'json'),
                        default='text', help='default: text')
    args = parser.parse_args()
    found = measured(args.root.resolve(), args.trace)
    if args.format == 'json':
        print(json.dumps(found, indent=4))
        return
    for name, one in found.items():
        is_list = isinstance(one, list)
        print(f'{name:20}{len(one) if is_list else one:8}')
        if args.list and is_list:
            print(*(f'    {line}' for line in (
                one if 'floors' in name else sorted(one))), sep='\n')


if __name__ == '__main__':
    main()
