# SPDX-License-Identifier: Apache-2.0
"""Prometheus' text format, version 0.0.4, of samples of families.

NOTE: prometheus_client writes it too, but sorts, checks and escapes the labels
of a server in each of its lines: with many servers most of a scrape's time.
Here that is done once for a group (tools/bench/metrics.py compares both).
"""

import collections
from collections.abc import Iterable
import functools

from nova_vqos.metrics import families


def text(groups: Iterable[families.Group]) -> str:
    """Known samples as text, by family, in the order of families.ALL."""
    lines = collections.defaultdict[str, list[str]](list)
    for labels, samples in groups:
        shared = _pairs(tuple(labels), tuple(labels.values()))
        shown = f'{{{shared}}}' if shared else ''
        begin = f'{{{shared},' if shared else '{'
        for (name, _kind, _help, names), values, value in samples:
            if value is None:
                continue
            if values:
                more = _kept_pairs(names[len(labels):], values)
                lines[name].append(f'{name}{begin}{more}}} {float(value)!r}\n')
            else:
                lines[name].append(f'{name}{shown} {float(value)!r}\n')
    parts: list[str] = []
    for family in families.ALL:
        found = lines.get(family.name)
        if found:
            parts.append(f'# HELP {family.name} {family.help}\n'
                         f'# TYPE {family.name} {family.kind}\n')
            parts += found
    return ''.join(parts)


def _pairs(names: tuple[str, ...], values: tuple[str, ...]) -> str:
    return ','.join([f'{name}="{_escaped(value)}"'
                     for name, value in zip(names, values, strict=True)])


# Most of a server's are those of any other: components of bills, for example.
_kept_pairs = functools.lru_cache(maxsize=256)(_pairs)


def _escaped(value: str) -> str:
    return (value.replace('\\', r'\\').replace('\n', r'\n')
            .replace('"', r'\"'))
