# SPDX-License-Identifier: Apache-2.0
"""Preemptions while another vCPU of a server ran, of made-up turns."""

import hypothesis
from hypothesis import strategies as st
import pytest

from nova_vqos.quantum import sibling_preemptions
from nova_vqos.quantum.sibling_preemptions import Change
from nova_vqos.quantum.sibling_preemptions import Counted
from nova_vqos.quantum.sibling_preemptions import Turn

_SIGNS = {'+': Change.BEGAN, '-': Change.PREEMPTED, '.': Change.ENDED}


def turns(text):
    """One character a ns: + - . are changes."""
    return [Turn(at_ns, _SIGNS[sign]) for at_ns, sign in enumerate(text)
            if sign != ' ']


@pytest.mark.parametrize('vcpus, expected', [
    # Another one runs all the time, or half of it.
    (['+ - + - + ', '+        .'], Counted(2, 8)),
    (['+  - + - +', ' + .     +'], Counted(1, 8)),
    # What gives its pCPU up itself is not preempted.
    (['+ . + . + ', '+        .'], Counted(0, 8)),
    # They take turns.
    (['+-   +-', '  +-   +-'], Counted(0, 4)),
    # Three of them: one is preempted at a time.
    (['+  - + ', '+   -  +', '+     .'], Counted(2, 5)),
    # It ran before its first turn, which says so.
    (['  -  + ', '+      .'], Counted(0, 3)),
    (['-  + - +', '-    +  '], Counted(0, 5)),
    # Later turns are not all known.
    (['+ - + - + -', '+  .'], Counted(1, 3))])
def test_what_counts(vcpus, expected):
    assert sibling_preemptions.count(list(map(turns, vcpus))) == expected


@pytest.mark.parametrize('vcpus', [
    [], ['+-'], ['+-', ''], ['+-', '   +-'], ['+', '+']])
def test_what_is_not_known(vcpus):
    assert sibling_preemptions.count(list(map(turns, vcpus))) is None


@hypothesis.given(st.lists(st.lists(st.tuples(
    st.integers(0, 50), st.sampled_from(Change)), max_size=20), max_size=4))
def test_no_more_than_there_were(given):
    found = sibling_preemptions.count([
        sorted((Turn(*turn) for turn in one), key=lambda turn: turn.at_ns)
        for one in given])
    if found is not None:
        assert found.length_ns > 0
        assert 0 <= found.preemptions <= sum(
            change is Change.PREEMPTED for one in given for _, change in one)
