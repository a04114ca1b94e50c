# SPDX-License-Identifier: Apache-2.0
from fractions import Fraction

import pytest

from nova_vqos.quantum import model
from nova_vqos.tests.fixtures import quantum_vcpus

Kind = model.Kind
SOCKETS = quantum_vcpus.sockets(2, 2, 2)


def test_cache_and_neutral_do_not_pollute():
    assert {
        (kind, pollutes) for kind in Kind for pollutes in (False, True)
        if model.Vcpu('a', 0, kind, pollutes).is_polluter} == {
            (Kind.IO, True), (Kind.SPIN, True), (Kind.DEFAULT, True),
            (Kind.POLLUTER, False), (Kind.POLLUTER, True)}


def test_each_kind_has_a_class():
    assert set(model.QUANTUM_CLASS) == set(Kind)
    assert {kind for kind, name in model.QUANTUM_CLASS.items()
            if name == 'neutral'} == model.AGNOSTIC


def test_pcpus_of_a_socket_are_those_of_its_cores():
    assert model.Socket(0, ((0, 4), (1,))).pcpus == {0, 4, 1}


class TestCheck:
    def test_valid_input_passes(self):
        model.check([model.Vcpu('a', 0, Kind.IO, share=Fraction(1, 3)),
                     model.Vcpu('a', 1, Kind.IO, share=1),
                     model.Vcpu('b', 0, Kind.IO)], SOCKETS)

    def test_a_duplicate_vcpu(self):
        with pytest.raises(model.PlanError, match='vCPU 1 of server a is '
                           'given more than once'):
            model.check([model.Vcpu('a', 1, Kind.IO),
                         model.Vcpu('a', 1, Kind.CACHE)], SOCKETS)

    @pytest.mark.parametrize('share', [
        Fraction(-1, 10), Fraction(11, 10), 2, -1, 0.5, float('nan'), None,
        '1/2'])
    def test_an_invalid_share(self, share):
        with pytest.raises(model.PlanError, match='the share of') as caught:
            model.check([model.Vcpu('a', 0, Kind.IO, share=share)], SOCKETS)
        assert str(share) in str(caught.value)

    @pytest.mark.parametrize('sockets', [
        [], [model.Socket(0, ())], [model.Socket(0, ((),))]])
    def test_no_pcpu(self, sockets):
        with pytest.raises(model.PlanError, match='at least one pCPU'):
            model.check([], sockets)

    @pytest.mark.parametrize('sockets, what, number', [
        ([model.Socket(0, ((0, 1),)), model.Socket(1, ((1,),))], 'pCPU', 1),
        ([model.Socket(0, ((0,), (0,)))], 'pCPU', 0),
        ([model.Socket(3, ((0,),)), model.Socket(3, ((1,),))], 'socket', 3)])
    def test_a_duplicate_pcpu_or_socket(self, sockets, what, number):
        with pytest.raises(model.PlanError, match=f'^{what} {number} is '
                           'given more than once'):
            model.check([], sockets)
