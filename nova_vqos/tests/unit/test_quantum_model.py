# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.

from fractions import Fraction
import unittest

from nova_vqos.quantum import model
from nova_vqos.tests.unit import quantum_vcpus

Kind = model.Kind


class VcpuTest(unittest.TestCase):

    def test_io_and_spin_may_pollute_but_cache_and_neutral_do_not(self):
        polluters = {
            (kind, pollutes) for kind in Kind for pollutes in (False, True)
            if model.Vcpu('a', 0, kind, pollutes).is_polluter}
        self.assertEqual(
            {(Kind.IO, True), (Kind.SPIN, True),
             (Kind.POLLUTER, False), (Kind.POLLUTER, True)}, polluters)

    def test_each_kind_has_a_class(self):
        self.assertEqual(set(Kind), set(model.QUANTUM_CLASS))
        self.assertEqual(
            model.AGNOSTIC,
            {kind for kind, name in model.QUANTUM_CLASS.items()
             if name == 'neutral'})

    def test_pcpus_of_a_socket_are_those_of_its_cores(self):
        self.assertEqual({0, 4, 1},
                         model.Socket(0, ((0, 4), (1,))).pcpus)


class CheckTest(unittest.TestCase):

    def setUp(self):
        super().setUp()
        self.sockets = quantum_vcpus.sockets(2, 2, 2)

    def test_fit_input_passes(self):
        model.check([model.Vcpu('a', 0, Kind.IO, share=Fraction(1, 3)),
                     model.Vcpu('a', 1, Kind.IO, share=1),
                     model.Vcpu('b', 0, Kind.IO)], self.sockets)

    def test_a_vcpu_given_twice_is_refused(self):
        vcpus = [model.Vcpu('a', 1, Kind.IO), model.Vcpu('a', 1, Kind.CACHE)]
        with self.assertRaises(model.VcpuTwice) as caught:
            model.check(vcpus, self.sockets)
        self.assertEqual(('a', 1), (caught.exception.server,
                                    caught.exception.number))
        self.assertIn('vCPU 1 of server a', str(caught.exception))

    def test_a_share_that_is_no_part_is_refused(self):
        for share in (Fraction(-1, 10), Fraction(11, 10), 2, -1, 0.5,
                      float('nan'), None, '1/2'):
            with self.subTest(share=share):
                vcpus = [model.Vcpu('a', 0, Kind.IO, share=share)]
                with self.assertRaises(model.ShareInvalid) as caught:
                    model.check(vcpus, self.sockets)
                self.assertIn(str(share), str(caught.exception))

    def test_no_pcpu_is_refused(self):
        for sockets in ([], [model.Socket(0, ())], [model.Socket(0, ((),))]):
            with self.subTest(sockets=sockets), (
                    self.assertRaises(model.NoPcpus)):
                model.check([], sockets)

    def test_a_pcpu_or_socket_given_twice_is_refused(self):
        for sockets, what in (
                ([model.Socket(0, ((0, 1),)), model.Socket(1, ((1,),))],
                 'pCPU 1'),
                ([model.Socket(0, ((0,), (0,)))], 'pCPU 0'),
                ([model.Socket(3, ((0,),)), model.Socket(3, ((1,),))],
                 'socket 3')):
            with self.subTest(sockets=sockets):
                with self.assertRaises(model.PcpuTwice) as caught:
                    model.check([], sockets)
                self.assertIn(what, str(caught.exception))
