# SPDX-License-Identifier: Apache-2.0
"""The picture of a demo."""

import json
import math
from xml.etree import ElementTree

import pytest

from nova_vqos_lab import cli
from nova_vqos_lab import demo_plot
from nova_vqos_lab import gauge
from nova_vqos_lab import results

SVG = '{http://www.w3.org/2000/svg}'
DELIVERED_CU = {
    ('stock', 'fast', 'boot'): 57.1, ('stock', 'slow', 'migrated'): 28.2,
    ('units', 'fast', 'boot'): 59.3, ('units', 'slow', 'boot'): 61.4,
    ('units', 'slow', 'migrated'): 60.5, ('units', 'fast', 'migrated'): 58.6}


def measured(story, host, moment, cu, **changes):
    return results.Measurement(**{
        'story': story, 'host': host, 'moment': moment,
        'work': gauge.CALIBRATED, 'promised_cu': gauge.PROMISED_CU,
        'delivered_cu': cu, 'raw_cu': cu / 2, 'pace': 0.5,
        'uncertainty': 0.02, **changes})


@pytest.fixture
def found():
    made = results.Results()
    made.measurements = [measured(*key, cu)
                         for key, cu in DELIVERED_CU.items()]
    # Other work, other servers, and other moments of the demo.
    made.measurements += [
        measured('units', 'fast', 'boot', 11.1, work='bzip2'),
        measured('units', 'fast', 'boot', 12.2, promised_cu=150),
        measured('stock', 'fast', 'noise', 13.3, work='CPU time')]
    return made


@pytest.fixture
def draw(tmp_path):
    def drawn(found):
        """Draws from a file, as the command does; :returns: its texts."""
        found.write(str(tmp_path / 'demo.json'))
        path = tmp_path / 'demo.svg'
        assert cli.main(['plot', str(tmp_path / 'demo.json'), str(path)]) == 0
        return [text.text for text
                in ElementTree.parse(path).iter(f'{SVG}text')]

    return drawn


def test_each_server_before_and_after_its_move(found, draw):
    texts = draw(found)
    assert [one for one in texts if ', ' in one and ' on ' in one
            or ' to ' in one] == [
        'stock Nova, booted on fast', 'stock Nova, moved to slow',
        'nova_vqos, booted on fast', 'nova_vqos, moved to slow',
        'nova_vqos, booted on slow', 'nova_vqos, moved to fast']
    assert [one for one in texts if one in map(str, DELIVERED_CU.values())
            ] == ['57.1', '28.2', '59.3', '60.5', '61.4', '58.6']
    assert not {'11.1', '12.2', '13.3'} & set(texts)


def test_a_demo_that_failed_half_way(found, draw):
    found.measurements = [measured('stock', 'fast', 'boot', 57.1,
                                   uncertainty=math.inf)]
    texts = draw(found)
    assert 'stock Nova, booted on fast' in texts
    assert 'stock Nova, moved to slow' not in texts


def test_the_same_demo_gives_the_same_picture(found, tmp_path):
    for name in 'a.svg', 'b.svg':
        demo_plot.write(found.measurements, str(tmp_path / name))
    assert ((tmp_path / 'a.svg').read_bytes()
            == (tmp_path / 'b.svg').read_bytes())


@pytest.mark.parametrize('content', [
    None, '', '[]', '{}', '{"measurements": [1]}',
    json.dumps({'measurements': [{'story': 'stock'}]})])
def test_what_is_no_result(content, tmp_path, capsys):
    path = tmp_path / 'demo.json'
    if content is not None:
        path.write_text(content)
    assert cli.main(['plot', str(path), str(tmp_path / 'demo.svg')]) == 1
    assert f'error: {path}: not what demo --json writes' in (
        capsys.readouterr().err)


def test_nothing_was_measured(tmp_path, capsys):
    path = tmp_path / 'demo.json'
    results.Results().write(str(path))
    assert cli.main(['plot', str(path), str(tmp_path / 'demo.svg')]) == 1
    assert 'error: there is nothing to draw' in capsys.readouterr().err
