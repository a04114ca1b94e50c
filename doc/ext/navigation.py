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
