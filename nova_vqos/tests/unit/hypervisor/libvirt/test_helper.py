# SPDX-License-Identifier: Apache-2.0
"""What the agent's helper does, and that it does nothing else."""

import json
import os

import pytest

from nova_vqos.cmd import helper
from nova_vqos.hypervisor import base
from nova_vqos.hypervisor.libvirt import session as libvirt_session
from nova_vqos.hypervisor.libvirt import writer
from nova_vqos.hypervisor.libvirt.helper import protocol
from nova_vqos.hypervisor.libvirt.helper import server
from nova_vqos.tests.fixtures import fakes
from nova_vqos.tests.fixtures import recording_writer

UUID = fakes.UUID


@pytest.fixture
def target():
    return recording_writer.Recorder()


@pytest.fixture
def session():
    made = libvirt_session.Session('test:///default')
    yield made
    made.close()


@pytest.fixture
def answering(session, target):
    return server.HelperServer(session, target)


def test_it_connects_to_libvirt_again(answering, session, target):
    assert 'result' in answering.answer(b'{"method": "check"}')
    first = session.connected()
    target.result = base.Unavailable('gone')
    assert answering.answer(b'{"method": "check"}')['error'] == 'Unavailable'
    assert session.connected() is not first


def test_it_can_do_what_a_writer_can_and_no_more():
    assert set(protocol.METHODS) == writer.Writer.__abstractmethods__


def request(**fields):
    return {'method': 'pin', 'uuid': UUID, 'pcpus': '0-3', **fields}


@pytest.mark.parametrize('asked', [
    {}, [], 'check', None, {'method': ['check']},
    {'method': 'defineXML', 'uuid': UUID},
    {'method': '__init__'}, {'method': '_session'},
    {'method': 'check', 'uuid': UUID},
    request(flags=1), {'method': 'pin', 'uuid': UUID},
    request(uuid='../../etc'), request(uuid=1),
    request(uuid=UUID.replace('-', '')), request(uuid=f'{{{UUID}}}'),
    request(uuid=None),
    request(pcpus=''), request(pcpus=[0]), request(pcpus='0-'),
    request(pcpus='0-99999999'), request(pcpus=None),
    *({'method': 'write', 'uuid': UUID, 'changes': changes} for changes in (
        [], {}, None, [[]], [['quota_us']], [['vcpu_quota', 1]],
        [['quota_us', -1]], [['quota_us', 2 ** 60]], [['quota_us', True]],
        [['quota_us', 0.5]], [['quota_us', '1']], [[None, None]], [7],
        [['quota_us', 1]] * 17)),
    *({'method': 'persist', 'uuid': UUID, 'cap': cap, 'shares': shares}
      for cap, shares in (([1], 1), ([1, 2, 3], 1), ('ab', 1), (7, 1),
                          ([1, None], 1), ([-1, 1], 1), (None, None),
                          (None, -1), (None, '1'))),
    *({'method': 'limit_disks', 'uuid': UUID, 'disk_limit': limit}
      for limit in ([1], [1, 2, 3], 'ab', 7, {}, [0, 1], [1, 0], [-1, 1],
                    [1, None], [1.5, 2], [True, 1], [1, 2 ** 60])),
    *({'method': 'place', 'uuid': UUID, 'pins': pins} for pins in (
        [], None, {'a': '0'}, {'-1': '0'}, {'4097': '0'}, {'²': '0'},
        {'0': ''}, {'0': 1})),
    *({'method': 'restore_pins', 'uuid': UUID, 'pcpus': '0', 'vcpus': vcpus}
      for vcpus in (None, {}, [-1], [4097], ['0'], [True])),
])
def test_what_the_agent_never_sends_is_refused(answering, target, asked):
    answer = answering.answer(json.dumps(asked).encode())
    assert answer['error'] == 'HypervisorError'
    assert target.calls == []


@pytest.mark.parametrize('message', [
    b'', b'\xff', b'{', b'[' * 100_000, b'1' * 100_000])
def test_what_is_no_message_is_refused(answering, target, message):
    assert 'error' in answering.answer(message)
    assert target.calls == []


@pytest.mark.parametrize('environment', [
    {}, {'LISTEN_PID': '1', 'LISTEN_FDS': '1'},
    {'LISTEN_PID': str(os.getpid()), 'LISTEN_FDS': '2'}])
def test_it_needs_the_socket_of_systemd(environment):
    with pytest.raises(helper.NoSocket):
        helper.take_socket(environment)
