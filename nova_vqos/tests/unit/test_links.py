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


"""tools/lib/links.py, which looks for links that lead nowhere."""

import importlib.util

import pytest

from nova_vqos.tests import project

pytestmark = project.needs_checkout


@pytest.fixture
def links():
    path = project.TOP / 'tools/lib/links.py'
    spec = importlib.util.spec_from_file_location('links', path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def pages(tmp_path):
    """Writes a page beside one with an anchor, in a directory of its own."""
    def write(body):
        (tmp_path / 'guide').mkdir(exist_ok=True)
        (tmp_path / 'guide/a b.html').write_text('<h1 id="top">A</h1>')
        (tmp_path / 'picture.svg').write_text('')
        (tmp_path / 'page.html').write_text(body)
        return tmp_path
    return write


@pytest.mark.parametrize('link', [
    'guide/a%20b.html', 'guide/a%20b.html#top', 'page.html', '#here', '#',
    'picture.svg', 'guide/../picture.svg', 'https://example.org/none',
    '//example.org/none', 'mailto:somebody@example.org'])
def test_what_leads_somewhere(links, pages, link):
    directory = pages(f'<p id="here"><a href="{link}">x</a>')
    assert links.broken_of_pages(directory) == []


@pytest.mark.parametrize('body', [
    '<a href="none.html">', '<a href="guide/a%20b.html#none">',
    '<a href="#none">', '<img src="none.png">', '<object data="none.svg">'])
def test_what_leads_nowhere(links, pages, body):
    (line,) = links.broken_of_pages(pages(body))
    assert line.startswith('page.html: ')
    assert 'none' in line


def test_a_directory_without_pages_is_no_success(links, tmp_path):
    assert links.broken_of_pages(tmp_path) == [
        f'{tmp_path}: there are no pages']


def test_a_source_that_links_to_files(links, tmp_path):
    source = tmp_path / 'README.rst'
    source.write_text('See `this\n<README.rst>`_, `that <none.rst>`_ and '
                      '`those <https://example.org>`__.\n')
    assert links.broken_of_source(source) == [f'{source}: none.rst']


def test_the_readme_links_to_what_is_there(links):
    assert links.broken_of_source(project.TOP / 'README.rst') == []
