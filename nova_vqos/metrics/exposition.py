# SPDX-License-Identifier: Apache-2.0
"""Prometheus' text format, version 0.0.4, of samples of families.

NOTE: prometheus_client writes it too, but sorts, checks and escapes the labels
of a server in each of its lines: with many servers most of a scrape's time.
Here they are escaped once a page (tools/bench/metrics.py compares both).
"""

from collections.abc import Iterable

from nova_vqos.metrics import families


def text(samples: Iterable[families.Sample]) -> str:
    """Samples as text, by family, in the order of families.ALL."""
    lines: dict[str, list[str]] = {}
    # Servers have few sets of labels, each in many families.
    labelled: dict[tuple[tuple[str, ...], tuple[str, ...]], str] = {}
    for family, labels, value in samples:
        key = family.labels, labels
        shown = labelled.get(key)
        if shown is None:
            shown = labelled[key] = _labels(family.labels, labels)
        lines.setdefault(family.name, []).append(
            f'{family.name}{shown} {value}\n')
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
    pairs = [f'{name}="{_escaped(value)}"'
             for name, value in zip(names, values, strict=True)]
    return f'{{{",".join(pairs)}}}'


def _escaped(value: str) -> str:
    return (value.replace('\\', r'\\').replace('\n', r'\n')
            .replace('"', r'\"'))
