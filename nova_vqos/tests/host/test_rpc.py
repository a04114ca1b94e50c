# SPDX-License-Identifier: Apache-2.0
"""Garbage on the message bus, which the agent has to live with."""

import json

import kombu
import oslo_messaging
import pytest

from nova_vqos.agent import rpcapi
from nova_vqos.tests.host import guests

SERVER = '00000000-0000-4000-8000-000000000000'

BAD_CALLS = [
    ('get_server', {}),
    ('get_server', {'server_uuid': SERVER, 'more': 1}),
    ('get_server', {'server_uuid': None}),
    ('get_server', {'server_uuid': ['x']}),
    ('get_server', {'server_uuid': '../../etc/passwd'}),
    ('get_server', {'server_uuid': 'x' * (1 << 20)}),
    ('get_host', {'server_uuid': SERVER}),
    ('get_server', {'server_uuid': {'a': {'b': 'c'}}}),
    ('apply_policy', {'server_uuid': SERVER}),
    ('apply_policy', {'server_uuid': SERVER, 'policy': 'full'}),
    ('apply_policy', {'server_uuid': SERVER, 'policy': {}}),
    ('apply_policy', {'server_uuid': SERVER, 'policy': {
        'vcpus': -1, 'units': 2 ** 70, 'cap': 'hard',
        'quantum_class': 'default', 'dd_billing': 'off',
        'guarantee': 'off'}}),
]


def test_wrong_calls_are_answered_and_garbage_is_survived(
        lab, bus, guest_on, agent_of, client):
    agent = agent_of(lab.fast)
    guest = guest_on(lab.fast, specs=guests.server(40))
    guest.wait_cap(guests.CAP)
    client.wait_reachable(lab.fast)
    for method, arguments in BAD_CALLS:
        with pytest.raises(oslo_messaging.RemoteError) as caught:
            client.call(lab.fast, method, **arguments)
        assert caught.value.exc_type == 'InvalidArgument', method
    with pytest.raises(oslo_messaging.RemoteError) as caught:
        client.call(lab.fast, 'get_server', server_uuid=SERVER)
    assert caught.value.exc_type == rpcapi.UnknownServer.__name__
    for method in ('nonesuch', '__init__', '_loop'):
        with pytest.raises(oslo_messaging.RemoteError) as caught:
            client.call(lab.fast, method)
        assert caught.value.exc_type == 'NoSuchMethod', method
    # oslo.messaging lets callers have an endpoint's target; it takes none.
    with pytest.raises(TypeError):
        client.call(lab.fast, 'target')
    assert_unharmed(client, agent, guest)
    client.submit(publish_garbage, bus)
    assert_unharmed(client, agent, guest)


def publish_garbage(bus):
    """Put what no client would send into the queue of the agent."""
    url = bus.replace('rabbit://', 'amqp://').rstrip('/') + '//'
    with kombu.Connection(url) as connection:
        producer = connection.Producer()
        for body, kind in ((b'\x00\xff' * 1000, 'application/octet-stream'),
                           (b'{"oslo.message": ', 'application/json'),
                           (b'[1, 2]', 'application/json'),
                           (b'{"oslo.version": "9.9"}', 'application/json'),
                           (b'{"oslo.version": "2.0", "oslo.message": '
                            b'"[]"}', 'application/json')):
            producer.publish(body, routing_key='vqos-agent.fast',
                             content_type=kind, content_encoding='utf-8')


def test_callers_that_are_gone_keep_no_answer_from_others(
        lab, bus, agent_of, client):
    agent_of(lab.fast)
    client.wait_reachable(lab.fast)
    client.submit(publish_questions, bus)
    for _ in range(20):
        client.get_host(lab.fast)


def publish_questions(bus):
    """As of callers that are gone before they have an answer."""
    url = bus.replace('rabbit://', 'amqp://').rstrip('/') + '//'
    with kombu.Connection(url) as connection:
        producer = connection.Producer()
        for number in range(40):
            producer.publish(
                {'oslo.version': '2.0', 'oslo.message': json.dumps({
                    'method': ('get_host', 'list_servers')[number % 2],
                    'args': {}, 'version': '1.0', '_msg_id': f'id{number}',
                    '_unique_id': f'id{number}',
                    '_reply_q': f'reply_{number}'})},
                routing_key='vqos-agent.fast', serializer='json')


def assert_unharmed(client, agent, guest):
    """It answers, and looks after its server."""
    assert agent.process.alive()
    assert client.get_server(guest.host, guest)['right'] is True
    guest.meddle(45_000)
    guest.wait_cap(guests.CAP)
