# SPDX-License-Identifier: Apache-2.0
"""Strategies: valid input, damaged in a few places."""

import copy
import json

from hypothesis import strategies

# What programs stumble over.
_ATOMS = (
    None, True, False, 0, 1, -1, 2**31, 2**53, 2**63, -2**63, 10**400,
    -10**400, 0.1, -0.0, 1e308, -1e308, 5e-324, float('nan'), float('inf'),
    -float('inf'), '', ' ', '0', '-1', '1e400', '١', 'nan', 'x' * 300,
    'x' * 5000, '\n', '\x00', '\x9b', '\u202e', '\ud800', '../../etc',
    '%s%n', '{0}', [], {}, [[]], {'': {}})
_VALUES = strategies.recursive(
    strategies.sampled_from(_ATOMS) | strategies.integers()
    | strategies.floats() | strategies.text(max_size=20),
    lambda inner: strategies.lists(inner, max_size=4)
    | strategies.dictionaries(strategies.text(max_size=8), inner, max_size=4),
    max_leaves=8)
# Hypothesis shows no more than some hundred levels; texts have thousands.
_NESTED = 100
_MOST_DAMAGES = 4
_PIECES = (b'', b'\x00', b'\xff', b'\n', b'"', b"'", b'<', b'>', b'/>', b'</',
           b'&amp;', b'&#0;', b'&x;', b'<!--', b'-->', b'<![CDATA[', b']]>',
           b'<?x ?>', b'<!DOCTYPE a>', b'xmlns=""', b'{', b'}', b'[', b']',
           b',', b':', b'-', b'0', b'9' * 400, b'1e999', b'NaN', b'^', b'=',
           b'[' * 3000)


def documents(*seeds):
    """Damaged forms of documents, as JSON has them.

    :param seeds: valid ones
    """
    return _documents(tuple(seeds))


@strategies.composite
def _documents(draw, seeds):
    document = copy.deepcopy(draw(strategies.sampled_from(seeds)))
    for _ in range(draw(strategies.integers(0, _MOST_DAMAGES))):
        document = _damaged(draw, document)
    return document


def _damaged(draw, value):
    """Replaces, removes, adds or repeats something within a value."""
    is_container = isinstance(value, dict | list) and value
    if not is_container or draw(strategies.integers(0, 9)) == 0:
        if draw(strategies.integers(0, 49)) == 0:
            return _nest(value)
        return copy.deepcopy(draw(_VALUES))
    keys = list(value) if isinstance(value, dict) else list(range(len(value)))
    key = draw(strategies.sampled_from(keys))
    what = draw(strategies.integers(0, 5))
    if what == 0:
        del value[key]
    elif what == 1 and isinstance(value, dict):
        value[draw(strategies.text(max_size=8)
                   | strategies.sampled_from(keys))] = copy.deepcopy(
                       draw(_VALUES))
    elif what == 1:
        value[key:key] = [copy.deepcopy(value[key])] * draw(
            strategies.integers(1, 100))
    elif what == 2:
        # That of another field.
        value[key] = copy.deepcopy(
            value[draw(strategies.sampled_from(keys))])
    else:
        value[key] = _damaged(draw, value[key])
    return value


def _nest(value):
    for _ in range(_NESTED):
        value = [value]
    return value


def texts(*seeds):
    """Damaged forms of contents, as bytes.

    :param seeds: valid ones
    """
    return _texts(tuple(seeds))


@strategies.composite
def _texts(draw, seeds):
    content = draw(strategies.sampled_from(seeds))
    for _ in range(draw(strategies.integers(0, _MOST_DAMAGES))):
        first = draw(strategies.integers(0, len(content)))
        last = first + draw(strategies.integers(0, 20)
                            | strategies.integers(0, len(content)))
        other = draw(strategies.integers(0, len(content)))
        piece = draw(
            strategies.sampled_from(_PIECES) | strategies.binary(max_size=12)
            | strategies.just(content[other:other + last - first])
            | strategies.just(content[first:last] * 50))
        content = content[:first] + piece + content[last:]
    return content


def files(*seeds):
    """Damaged forms of files of JSON, as bytes.

    :param seeds: valid documents
    """
    written = [json.dumps(seed).encode() for seed in seeds]
    return texts(*written) | documents(*seeds).map(
        lambda document: json.dumps(document).encode())
