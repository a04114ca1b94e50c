# SPDX-License-Identifier: Apache-2.0
"""What physics allows a server to have used."""

from fractions import Fraction

import hypothesis
from hypothesis import strategies
import pytest

from nova_vqos.billing import meter
from nova_vqos.billing import plausible


def bill(**used_ns):
    return meter.Bill(
        length_s=2.0, throttled_ns=0, unmodelled=frozenset(), received=0,
        dropped=0, used_ns=dict.fromkeys(meter.COMPONENTS, Fraction(0))
        | used_ns)


@pytest.mark.parametrize('name', meter.COMPONENTS)
def test_one_component_is_too_much(name):
    assert plausible.objection(bill(**{name: 2**63}), 2.0, 64)


@hypothesis.given(
    used=strategies.lists(strategies.floats(0, 1), min_size=8, max_size=8),
    length_s=strategies.floats(0, 1e7), pcpus=strategies.integers(1, 1024))
def test_whatever_all_pcpus_can_do_is_billed(used, length_s, pcpus):
    most_ns = length_s * pcpus * 1e9
    assert not plausible.objection(
        bill(**{name: Fraction(share * most_ns) for name, share
                in zip(meter.COMPONENTS, used, strict=False)}),
        length_s, pcpus)
