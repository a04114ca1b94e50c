# SPDX-License-Identifier: Apache-2.0
"""The documentation and reports in a real browser: light, dark and narrow.

Selenium has an environment of its own: the Python of PAGES_PYTHON, which
tools/test.sh pages makes, as it does the documentation. Diagrams and plots of
the documentation are files of their own, whose colours are not looked at.
"""

import json
import os
import subprocess

import pytest

from nova_vqos.tests.fixtures import project
from nova_vqos.tests.fixtures import report_pages
from nova_vqos.tests.fixtures import requirement

PYTHON = os.environ.get('PAGES_PYTHON')
DOCUMENTATION = project.TOP / 'doc/build/html'
SCHEMES = 'light', 'dark'
# A screen, and a telephone.
WIDTHS = 1200, 360
LIMIT_S = 1200
pytestmark = [
    pytest.mark.timeout(LIMIT_S + 60),
    pytest.mark.requires('' if PYTHON else 'PAGES_PYTHON names no Python with '
                         'Selenium: tools/test.sh pages makes '
                         'one')]


def documentation():
    """:returns: the path of each page, by name"""
    return {str(path.relative_to(DOCUMENTATION)): path
            for path in sorted(DOCUMENTATION.rglob('*.html'))}


def reports(folder):
    """Of one class and of several, of few benchmarks and of many.

    :returns: the path of each page, by name
    """
    many = [f'{kind}-{i}' for kind in ('integer', 'stream') for i in range(8)]
    found = {}
    for name, profiles in {
            'one': [report_pages.make()],
            'several': [report_pages.make(f'compute{i}', names=many,
                                          others=['memory', 'disk'],
                                          factors=(1.0, 1.3, 2.0))
                        for i in range(3)],
            'long': [report_pages.make('a-host-with-a-long-name.' * 5)]
            }.items():
        found[f'report {name}'] = folder / f'{name}.html'
        found[f'report {name}'].write_text(report_pages.page_of(*profiles))
    return found


def look(pages):
    """:returns: how each was seen, see :mod:`nova_vqos.tests.pages.look`"""
    requirement.need_programs('chromium', 'chromedriver')
    done = subprocess.run(
        # A namespace of processes: no browser outlives it.
        ['unshare', '--user', '--map-root-user', '--pid', '--fork',
         '--kill-child', '--mount-proc', PYTHON, '-m',
         'nova_vqos.tests.pages.look'],
        input=json.dumps({
            'addresses': {name: path.as_uri() for name, path in pages.items()},
            'schemes': SCHEMES, 'widths': WIDTHS,
            'pictures': os.environ.get('PAGES_PICTURES', '')}),
        capture_output=True, text=True, timeout=LIMIT_S, check=False,
        cwd=project.TOP)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert len(seen) == len(pages) * len(SCHEMES) * len(WIDTHS)
    return seen


@pytest.fixture(scope='module')
def pages(tmp_path_factory):
    return look(documentation()
                | reports(tmp_path_factory.mktemp('reports')))


def test_faults_are_seen(tmp_path):
    (tmp_path / 'page.html').write_text("""<!DOCTYPE html>
        <p>This is well <b style="color: #aaa">and this badly</b> legible.</p>
        <p style="background: #111; color: #222">Nor is this.</p>
        <div style="opacity: 0.3"><p>Nor what shines through.</p></div>
        <p style="font-size: 30px; color: #888">Large text needs less.</p>
        <p style="color: #aaa; visibility: hidden">Nobody sees it.</p>
        <svg width="200" height="40"><rect width="200" height="40" />
        <text y="20">Black on black</text>
        <text y="20" x="120" fill="#fff">white</text></svg>
        <svg width="200" height="40"><rect width="200" height="40"
        style="opacity: 0.1" /><text y="20">Black on grey</text></svg>
        <div style="filter: invert(1) hue-rotate(180deg)">
        <p style="color: #fff; background: #111">Black on nearly white</p>
        <p style="color: #eee">Nearly black on the page</p></div>
        <div style="width: 500px">Too wide for a telephone</div>
        <script src="missing.js"></script>""")
    for seen in look({'page': tmp_path / 'page.html'}):
        assert [text for text, *_colours in seen['faint']] == [
            'and this badly', 'Nor is this.', 'Nor what shines through.',
            'Black on black']
        assert (seen['wider'] > 0) is (seen['width'] == min(WIDTHS))
        assert seen['luminance'] == 1
        assert 'missing.js' in seen['console'][0]['message']


def test_there_are_pages(pages):
    assert {'index.html', 'admin/start.html', 'report one'} <= {
        page['page'] for page in pages}
    assert all(page['texts'] > 10 for page in pages
               if page['page'] != 'search.html')


def test_all_text_has_contrast(pages):
    faint = [(page['page'], page['scheme'], page['width'], *text)
             for page in pages for text in page['faint']]
    assert not faint


def test_none_is_wider_than_its_window(pages):
    wider = [(page['page'], page['width'], page['wider']) for page in pages
             if page['wider'] > 0]
    assert not wider


def test_each_is_as_light_or_dark_as_wanted(pages):
    for page in pages:
        if page['scheme'] == 'light':
            assert page['luminance'] > 0.8, page['page']
        else:
            assert page['luminance'] < 0.05, page['page']


def test_the_browser_has_nothing_to_say(pages):
    said = [(page['page'], one['level'], one['message'])
            for page in pages for one in page['console']]
    assert not said
