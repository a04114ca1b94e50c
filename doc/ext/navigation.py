# SPDX-License-Identifier: Apache-2.0
"""A Sphinx extension: all pages in the bar on the side.

The first page names each of its pages with a sentence, so that its tables of
contents are hidden; the theme would leave these out of the bar, too, and
show the headings of a page twice.
"""


def _with_hidden(_app, _page, _template, context, _doctree):
    toctree = context['toctree']
    context['toctree'] = lambda **_of_the_theme: toctree(
        includehidden=True, maxdepth=1)


def setup(app):
    app.connect('html-page-context', _with_hidden)
    return {'parallel_read_safe': True, 'parallel_write_safe': True}
