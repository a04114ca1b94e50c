# SPDX-License-Identifier: Apache-2.0
"""A Sphinx directive: the lines that a service logs, read from the code.

The page adds advice to some of them. Advice on a line that the code does not
log is an error of the documentation's build.
"""

import ast
import pathlib
import re
import typing as ty

import descriptions
from docutils.parsers.rst import directives
from sphinx.util import docutils

import nova_vqos

_PACKAGE = pathlib.Path(nova_vqos.__file__).parent
_CONVERSION = re.compile(r'%(?:\(\w+\))?[-+ #0]*[\d.]*([a-zA-Z%])')
_LEVELS = ('error', 'warning', 'info', 'various')


class Line(ty.NamedTuple):
    """A line of the log.

    :ivar text: with an ellipsis for each argument
    :ivar module: that logs it, below nova_vqos; the logger's name
    """

    level: str
    text: str
    module: str


class LogLines(docutils.SphinxDirective):
    """The lines at level info and above of the modules in some folders.

    Its content is a definition list: a part of a line as it is logged, and
    the advice on it, indented, below.
    """

    has_content = True
    option_spec = {'folders': directives.unchanged_required}

    def run(self):
        paths = sorted(path for name in self.options['folders'].split()
                       for path in _modules(name))
        for path in paths:
            self.env.note_dependency(str(path))
        lines = sorted(dict.fromkeys(
            line for path in paths for line in _lines(path)),
            key=lambda line: _LEVELS.index(line.level))
        advice = _advice(self.content)
        unknown = [part for part in advice
                   if not any(part in line.text for line in lines)]
        if unknown:
            raise self.error(f'not logged: {"; ".join(unknown)}')
        return self.parse_text_to_nodes(descriptions.table(
            ('Line', 'Level', 'Module', 'Meaning'), (38, 9, 18, 35),
            [(f'``{line.text}``', line.level, line.module,
              ' '.join(text for part, text in advice.items()
                       if part in line.text)) for line in lines]))


def _modules(name):
    """:param name: of a folder of the package, or of a module in it"""
    path = _PACKAGE / name
    return path.rglob('*.py') if path.is_dir() else [path]


def _advice(content):
    """:returns: advice by the part of the line that it is for"""
    advice = {}
    part = None
    for line in content:
        if line.startswith(' '):
            advice[part] = f'{advice[part]} {line.strip()}'.strip()
        elif line:
            part = line
            advice[part] = ''
    return advice


def _lines(path):
    """The lines that a module logs, but those without words of their own."""
    module = '.'.join(path.relative_to(_PACKAGE).with_suffix('').parts)
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Call(
                    func=ast.Attribute(value=ast.Name(id='LOG'), attr='log'),
                    args=[_, ast.Constant(value=str(text)), *_]):
                level = 'various'
            case ast.Call(
                    func=ast.Attribute(value=ast.Name(id='LOG'), attr=level),
                    args=[ast.Constant(value=str(text)), *_]):
                level = {'exception': 'error'}.get(level, level)
            case _:
                continue
        text = _CONVERSION.sub(
            lambda found: '%' if found[1] == '%' else '…', text).strip()
        if level in _LEVELS and re.search(r'\w', text):
            yield Line(level, text, module)


def setup(app):
    app.add_directive('log-lines', LogLines)
    return {'parallel_read_safe': True, 'parallel_write_safe': True}
