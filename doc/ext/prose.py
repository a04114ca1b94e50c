# SPDX-License-Identifier: Apache-2.0
"""A Sphinx extension: cells of tables that have sentences get a class.

By it a style sheet gives them some width, however long the names in other
columns are. A style sheet alone cannot see how much a cell has.
"""

from docutils import nodes

_LEAST_LETTERS = 40


def _mark(_app, doctree):
    for cell in doctree.findall(nodes.entry):
        if len(cell.astext()) >= _LEAST_LETTERS:
            cell['classes'].append('prose')


def setup(app):
    app.connect('doctree-read', _mark)
    return {'parallel_read_safe': True, 'parallel_write_safe': True}
