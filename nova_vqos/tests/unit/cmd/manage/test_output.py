# SPDX-License-Identifier: Apache-2.0
"""Figures for people and for programs."""

import pytest

from nova_vqos.cmd.manage import output


@pytest.mark.parametrize(('shown', 'text', 'value'), [
    (output.number(7), '      7', 7), (output.number(None), '-', None),
    (output.number(1.26, 1), '    1.3', 1.26),
    (output.share(0.5), '  50.0%', 0.5),
    (output.age(119.0), '119 s', 119.0), (output.age(120.0), '2 min', 120.0),
    (output.age(200_000.0), '2 d', 200_000.0), (output.age(None), '-', None),
    (output.texts(['a', 'b']), 'a, b', ['a', 'b']),
    (output.texts([]), '-', []), (output.texts(None), '-', None),
    (output.count(['a', 'b']), '      2', ['a', 'b']),
    (output.flag(False), 'no', False), (output.flag(None), '-', None)])
def test_columns(shown, text, value):
    assert (str(shown), shown.machine_readable()) == (text, value)


def test_unknown_values_sort_first():
    found = sorted([output.number(2), output.number(None), output.number(1)])
    assert [one.machine_readable() for one in found] == [None, 1, 2]
