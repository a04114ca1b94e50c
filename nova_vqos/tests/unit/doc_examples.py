# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.

"""The examples that the guides print, as their readers would type them."""

from collections.abc import Iterator, Sequence
import re
import shlex
import typing as ty

from nova_vqos.tests import project

PROGRAMS = ('nova-vqos-agent', 'nova-vqos-calibrate',
            'nova-vqos-libvirt-hook', 'nova-vqos-manage', 'nova-vqos-probe',
            'nova-vqos-status')

# What may stand before a command: a prompt, and who or where runs it.
_PREFIX = re.compile(
    r'(?:[$#] |sudo |(?:devstack/)?lab (?:exec|on \S+) |\S*/(?=nova-vqos-))*')
_INLINE = re.compile(
    r'``((?:%s) [^`]+)``' % '|'.join((*PROGRAMS, 'openstack')))


class Example(ty.NamedTuple):
    """A command of a guide.

    :ivar where: page and line, for whoever has to mend it
    :ivar words: as a shell splits it, without prompt and wrapper
    :ivar whole: of a literal block, so complete; else named in a sentence
    :ivar refused: whether it shows what is not taken: marked ``# refused``
    """

    where: str
    words: tuple[str, ...]
    whole: bool
    refused: bool = False


def pages() -> list[str]:
    """The guides, by their paths below the top of the checkout."""
    return sorted(str(path.relative_to(project.TOP)) for path in (
        project.TOP / 'README.rst',
        *(project.TOP / 'doc/source').rglob('*.rst')))


def examples(page: str) -> Iterator[Example]:
    """The commands of a page, in their order."""
    text = (project.TOP / page).read_text()
    for number, line in _literal_lines(text):
        words = _split(_PREFIX.sub('', line, count=1))
        if words:
            yield Example(f'{page}:{number}', words, whole=True,
                          refused=line.endswith('# refused'))
    for found in _INLINE.finditer(text):
        number = text.count('\n', 0, found.start()) + 1
        yield Example(f'{page}:{number}', _split(found[1]), whole=False)


def properties(words: Sequence[str]) -> dict[str, str]:
    """The properties that a command gives."""
    given = [words[number + 1] for number, word in enumerate(words)
             if word == '--property']
    return dict(one.split('=', 1) for one in given)


def flavors(page: str) -> list[tuple[str, str, int, dict[str, str]]]:
    """Each flavor that a page makes, and changes then, as it then is.

    One that the page changes and has not made is left out: nobody knows what
    it was.

    :returns: list of (where, name, vcpus, extra specs)
    """
    made: dict[str, tuple[int, dict[str, str]]] = {}
    found = []
    for example in examples(page):
        words = example.words
        if (words[0] != 'openstack' or 'flavor' not in words
                or example.refused):
            continue
        command = words[words.index('flavor') + 1]
        if command not in ('create', 'set'):
            continue
        (name,) = _positionals(words[words.index(command) + 1:])
        if command == 'create':
            made[name] = int(words[words.index('--vcpus') + 1]), {}
        elif name not in made:
            continue
        vcpus, specs = made[name]
        made[name] = vcpus, {**specs, **properties(words)}
        found.append((example.where, name, *made[name]))
    return found


def _positionals(words: Sequence[str]) -> list[str]:
    """All options of the flavor commands that we use take a value."""
    return [word for number, word in enumerate(words)
            if not word.startswith('--') and (
                number == 0 or not words[number - 1].startswith('--'))]


def _literal_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines of the literal blocks, continued ones put together.

    :returns: pairs of line number and line, without indentation
    """
    begun = 0
    indent = None
    joined = ''
    for number, line in enumerate(text.splitlines(), start=1):
        stripped = line.strip()
        if indent is None:
            if _opens_block(stripped):
                indent = len(line) - len(line.lstrip())
            continue
        if stripped and len(line) - len(line.lstrip()) <= indent:
            indent = (len(line) - len(line.lstrip())
                      if _opens_block(stripped) else None)
            continue
        begun = begun if joined else number
        joined += stripped.removesuffix('\\')
        if not stripped.endswith('\\'):
            yield begun, joined
            joined = ''


def _opens_block(stripped: str) -> bool:
    if stripped.startswith('.. '):
        return stripped.startswith('.. code-block::')
    return stripped.endswith('::')


def _split(line: str) -> tuple[str, ...]:
    try:
        words = shlex.split(line, comments=True)
        return tuple(words[:words.index('|')] if '|' in words else words)
    except ValueError:
        # The last line of a quoted script, or prose with an apostrophe.
        return tuple(line.replace("'", ' ').replace('"', ' ').split())
