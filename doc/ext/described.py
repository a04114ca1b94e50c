# SPDX-License-Identifier: Apache-2.0
"""A Sphinx directive: names that the code has, each with what a page says.

The page describes each name, the code says which there are, and what else is
known of them. A name without a description, or a description without a name,
is an error of the documentation's build.
"""

import descriptions
from sphinx.util import docutils


class Described(docutils.SphinxDirective):
    """A table of names, of which a page says something.

    Its content is a list as of fields::

        :name: what it is, which may
            go on in the next line

    :cvar columns: the heads of the table, first that of names, last that of
        what the page says
    :cvar widths: of the columns, in percent
    """

    has_content = True
    columns = ()
    widths = ()

    def facts(self):
        """What the code knows.

        :returns: by name, in the order of the table: the cells between the
            first column and the last, in reST
        """
        raise NotImplementedError

    def run(self):
        try:
            facts = self.facts()
            words = descriptions.described(self.content)
            descriptions.check(facts, words)
        except ValueError as error:
            raise self.error(str(error)) from error
        rows = [(f'``{name}``', *cells, words[name])
                for name, cells in facts.items()]
        return self.parse_text_to_nodes(
            descriptions.table(self.columns, self.widths, rows))
