# SPDX-License-Identifier: Apache-2.0
"""Sphinx directives: what programs say when they are asked for help."""

import importlib.metadata
import os
import re
import subprocess
import sys

from cliff import sphinxext
from docutils import nodes
from sphinx.util import docutils

# A process of its own: some programs choose how all of it is to run.
_START = """\
import sys
sys.argv[0] = {program!r}
from {module} import {function}
sys.exit({function}())
"""


class ProgramHelp(docutils.SphinxDirective):
    """The help of the program that the argument names."""

    required_arguments = 1

    def run(self):
        program, = self.arguments
        points = importlib.metadata.entry_points(
            group='console_scripts', name=program)
        if not points:
            raise self.error(f'there is no program {program}')
        point, *_ = points
        done = subprocess.run(
            [sys.executable, '-W', 'ignore', '-c', _START.format(
                program=program, module=point.module, function=point.attr),
             '--help'],
            env={**os.environ, 'COLUMNS': '79'}, capture_output=True,
            text=True)
        if done.returncode:
            raise self.error(f'{program} has no help: {done.stderr}')
        block = nodes.literal_block(done.stdout, done.stdout)
        block['language'] = 'none'
        return [block]


class CommandHelp(sphinxext.AutoprogramCliffDirective):
    """All commands of a program made with cliff.

    cliff's own directive leaves defaults as %(default)s, makes one long dash
    of the two that options begin with, and gives commands of several programs
    on a page the same anchors.
    """

    def _drop_ignored_options(self, parser, ignored_opts):
        super()._drop_ignored_options(parser, ignored_opts)
        parser.description = _with_options(parser.description or '')
        formatter = parser._get_formatter()
        for action in parser._actions:
            if action.help:
                action.help = _with_options(formatter._expand_help(action))

    def _generate_nodes_per_command(self, title, command_name, *others):
        section, = super()._generate_nodes_per_command(
            command_name, command_name, *others)
        section[0] = nodes.title(text=title)
        return [section]


def _with_options(text):
    """A text of help, with the options that it names as code."""
    return re.sub(r'(?<![\w`-])--[a-z][a-z-]*', r'``\g<0>``', text)


def setup(app):
    app.setup_extension('cliff.sphinxext')
    app.add_directive('autoprogram-cliff', CommandHelp, override=True)
    app.add_directive('program-help', ProgramHelp)
    return {'parallel_read_safe': True, 'parallel_write_safe': True}
