# SPDX-License-Identifier: Apache-2.0
"""Prometheus' text format, version 0.0.4, of samples of families.

NOTE: prometheus_client writes it too, but sorts, checks and escapes the labels
of a server in each of its lines: with many servers most of a scrape's time.
Here that is done once for many lines (tools/bench/metrics.py compares both).
"""

import collections
from collections.abc import Iterable
import functools

from nova_vqos.metrics import families


def text(samples: Iterable[families.Sample]) -> str:
    """Samples as text, by family, in the order of families.ALL."""
    lines = collections.defaultdict[str, list[str]](list)
    names = labels = shown = None
    for (name, _kind, _help, its_names), its_labels, value in samples:
        # Most samples of a server come one after the other, with the very
        # same labels.
        if its_labels is not labels or its_names is not names:
            names, labels = its_names, its_labels
            shown = _labels(names, labels)
        lines[name].append(f'{name}{shown} {value!r}\n')
    parts: list[str] = []
    for family in families.ALL:
        found = lines.get(family.name)
        if found:
            parts.append(f'# HELP {family.name} {family.help}\n'
                         f'# TYPE {family.name} {family.kind}\n')
            parts += found
    return ''.join(parts)


def _labels(names: tuple[str, ...], values: tuple[str, ...]) -> str:
    if not names:
        return ''
    pairs = [_label(name, value)
             for name, value in zip(names, values, strict=True)]
    return f'{{{",".join(pairs)}}}'


# Those that name a server come again in each of its sets of labels.
@functools.lru_cache(maxsize=256)
def _label(name: str, value: str) -> str:
    escaped = (value.replace('\\', r'\\').replace('\n', r'\n')
               .replace('"', r'\"'))
    return f'{name}="{escaped}"'
