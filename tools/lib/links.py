# SPDX-License-Identifier: Apache-2.0
"""Finds broken links in pages that were built, and in README.rst.

It follows no links to other sites.
"""

import argparse
import html.parser
import pathlib
import re
import sys
import urllib.parse

_LINK_IN_SOURCE = re.compile(r'`[^`<]*<([^>`]+)>`__?')


class Page(html.parser.HTMLParser):
    """The links and the anchors of a page."""

    def __init__(self, path):
        super().__init__()
        self.links = []
        self.anchors = {''}
        self.feed(path.read_text())

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.anchors |= {found[name] for name in ('id', 'name')
                         if found.get(name)}
        self.links += [found[name] for name in ('href', 'src', 'data')
                       if found.get(name)]


def broken_of_pages(directory):
    """:returns: a line for each broken link"""
    pages = {path.resolve(): Page(path) for path in directory.rglob('*.html')}
    if not pages:
        return [f'{directory}: there are no pages']
    return [f'{path.relative_to(directory.resolve())}: {link}'
            for path, page in sorted(pages.items())
            for link in page.links if not _leads(path, link, pages)]


def broken_of_source(path):
    """The same of a file in reST, whose links are to files beside it."""
    return [f'{path}: {link}'
            for link in _LINK_IN_SOURCE.findall(path.read_text())
            if not _leads(path.resolve(), link, {})]


def _leads(path, link, pages):
    scheme, host, target, _query, anchor = urllib.parse.urlsplit(link)
    if scheme or host:
        return True
    aim = path
    if target:
        aim = (path.parent / urllib.parse.unquote(target)).resolve()
    if aim in pages:
        return urllib.parse.unquote(anchor) in pages[aim].anchors
    return aim.exists()


def main():
    """:returns: exit status"""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('directory', type=pathlib.Path,
                        help='where the pages are')
    parser.add_argument('sources', type=pathlib.Path, nargs='*',
                        help='files in reST')
    arguments = parser.parse_args()
    broken = broken_of_pages(arguments.directory)
    for source in arguments.sources:
        broken += broken_of_source(source)
    for line in broken:
        print(f'broken link: {line}', file=sys.stderr)
    return 1 if broken else 0


if __name__ == '__main__':
    sys.exit(main())
