# SPDX-License-Identifier: Apache-2.0
"""Whether the pages of the documentation, and reports, can be read.

On light and dark screens: contrast as the WCAG define it.
"""

import functools
import re

import pytest

from nova_vqos.tests.fixtures import project

pytestmark = project.needs_checkout

COLOURS = 'doc/source/_static/colours.css'
LAYOUT = 'doc/source/_static/nova_vqos.css'
REPORT = 'nova_vqos/calibration/report/page.html.j2'
# Of text, in level AA.
LEAST_CONTRAST = 4.5
DARK = 'prefers-color-scheme: dark'
# What is written on what.
PAIRS = {
    COLOURS: [
        ('ink', 'paper'), ('ink', 'stripe'), ('ink', 'panel'),
        ('ink', 'alarm'), ('muted', 'paper'), ('heading', 'paper'),
        ('heading', 'panel'), ('link', 'paper'), ('link', 'stripe'),
        ('link', 'panel'), ('on-bar', 'bar'), ('on-block', 'block'),
        ('on-alarm', 'alarm'), ('on-mark', 'mark')],
    REPORT: [('ink', 'paper'), ('muted', 'paper'), ('link', 'paper')]}
LINES = {COLOURS: 'line', REPORT: 'grid'}


@functools.cache
def style_of(path):
    text = (project.TOP / path).read_text()
    (style,) = re.findall('<style>(.*)</style>', text,
                          re.DOTALL) or [text]
    return re.sub(r'/\*.*?\*/', '', style, flags=re.DOTALL)


def colours_of(path):
    """:returns: of a light screen and of a dark one, by name"""
    return [dict(re.findall('--([a-z-]+): (#[0-9a-f]{6});', part))
            for part in style_of(path).split(DARK)]


def luminance(colour):
    parts = (int(colour[at:at + 2], 16) / 255 for at in (1, 3, 5))
    red, green, blue = (part / 12.92 if part <= 0.04045
                        else ((part + 0.055) / 1.055) ** 2.4
                        for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one, other):
    darker, lighter = sorted(map(luminance, (one, other)))
    return (lighter + 0.05) / (darker + 0.05)


def test_contrast():
    """By examples of the WCAG."""
    assert contrast('#000000', '#ffffff') == 21
    assert round(contrast('#767676', '#ffffff'), 2) == 4.54


@pytest.mark.parametrize('path', PAIRS)
@pytest.mark.parametrize('screen', [0, 1], ids=['light', 'dark'])
def test_all_text_can_be_read(path, screen):
    colours = colours_of(path)[screen]
    assert set(colours) == {*sum(PAIRS[path], ()), LINES[path]}
    assert not {pair: round(found, 2) for pair in PAIRS[path]
                if (found := contrast(*map(colours.get, pair)))
                < LEAST_CONTRAST}


@pytest.mark.parametrize('path', [*PAIRS, LAYOUT])
def test_all_colours_have_names(path):
    """Else a dark screen would have a light one's."""
    rules = re.sub('--[a-z-]+: [^;]+;', '', style_of(path))
    assert not re.findall(
        r'#[0-9a-f]{3,8}\b|rgba?\(|\b(?:white|black)\b(?!-)', rules)
    assert set(re.findall(r'var\(--([a-z-]+)\)', rules)) <= {
        *colours_of(COLOURS if path == LAYOUT else path)[0], 'font'}
