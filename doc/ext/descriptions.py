# SPDX-License-Identifier: Apache-2.0
"""What a page says of names that the code has. No Sphinx is needed."""

import re

_LINE = re.compile(r':(\S+): +(\S.*)')


def described(lines):
    """:returns: what is said, by name

    :raises ValueError: when a line belongs to none, or a name comes twice
    """
    words = {}
    name = None
    for line in lines:
        found = _LINE.fullmatch(line)
        if found:
            name = found[1]
            if name in words:
                raise ValueError(f'{name} is described twice')
            words[name] = found[2]
        elif name is not None and line.startswith(' '):
            words[name] += f' {line.strip()}'
        elif line:
            raise ValueError(f'{line!r} describes nothing: it begins neither '
                             'with :NAME: nor with a blank')
    return words


def check(names, words):
    """Compare what there is with what is described.

    :raises ValueError: when these differ
    """
    missing = [name for name in names if name not in words]
    unknown = [name for name in words if name not in names]
    if missing or unknown:
        raise ValueError('; '.join(
            f'{", ".join(found)}: {what}' for found, what in (
                (missing, 'not described'), (unknown, 'there is no such'))
            if found))


def table(columns, widths, rows):
    """:returns: a table in reST, of cells of one line each"""
    lines = ['.. list-table::', '   :header-rows: 1',
             f'   :widths: {" ".join(map(str, widths))}', '']
    for row in (columns, *rows):
        lines += [f'   {" " if number else "*"} - {cell}'
                  for number, cell in enumerate(row)]
    return '\n'.join(lines)
