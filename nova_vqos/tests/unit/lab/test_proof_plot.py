# SPDX-License-Identifier: Apache-2.0
"""The picture of a proof."""

import argparse
from xml.etree import ElementTree

import pytest

from nova_vqos.tests.unit.lab import test_proof
from nova_vqos_lab import cli
from nova_vqos_lab import proof_plot

SVG = '{http://www.w3.org/2000/svg}'


def test_plot(tmp_path):
    """Each window of 1 and 10 s, and each visit, is a point of its own."""
    made = test_proof.make_proof(first=0.01)
    path = tmp_path / 'proof.svg'
    proof_plot.write(made, str(path))
    root = ElementTree.parse(path).getroot()
    assert root.tag.endswith('svg')
    points = sum(len(errors) for stay in made.stays
                 for length_s, errors in stay.cpu_errors.items()
                 if length_s in (1, 10)) + sum(
        len(stay.visits) for stay in made.stays)
    drawn = [use for group in root.iter(f'{SVG}g')
             if group.get('clip-path') for use in group.iter(f'{SVG}use')]
    assert len(drawn) == points
    labels = {text.text for text in root.iter(f'{SVG}text')}
    assert '10 s on slow, later (4)' in labels


@pytest.mark.parametrize('name', ['proof.png', 'no/such/directory/p.svg', ''])
def test_a_plot_that_cannot_be(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(argparse.ArgumentTypeError):
        cli._svg(name)
