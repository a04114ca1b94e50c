# SPDX-License-Identifier: Apache-2.0
"""Messages of one kind do not push out those of another."""

import pytest

from nova_vqos.agent import outbox
from nova_vqos.billing import account
from nova_vqos.billing import meter
from nova_vqos.tests.fixtures import fakes


class Bus:
    """What was sent to other agents, by method and host."""

    def __init__(self):
        self.sent = []

    def __getattr__(self, method):
        return lambda *arguments, **_options: self.sent.append(
            (method, arguments[0]))


@pytest.fixture
def bus():
    return Bus()


@pytest.fixture
def sender(bus):
    """Sends when it is stopped."""
    made = outbox.Outbox('host')
    made.use_bus(bus)
    made.use_notifier(lambda kind, _payload: bus.sent.append((kind, None)))
    return made


def send(sender):
    sender.start()
    sender.stop()


def hand_over(sender, host, uuid=fakes.UUID):
    sender.hand_over(host, account.Statement(
        uuid, 1, dict.fromkeys(meter.COMPONENTS, 0), 0, 0), 'nonce',
        is_copy=False)


def test_what_others_ask_for_comes_last(bus, sender):
    hand_over(sender, 'there')
    sender.notify(outbox.USAGE, {})
    sender.claim_speeds(fakes.UUID, 'nonce')
    sender.claim(fakes.UUID, 'nonce', 0, '')
    send(sender)
    assert [method for method, _to in bus.sent] == [
        'claim_speeds', 'claim_ledger', outbox.USAGE, 'hand_over']


def test_the_newest_answer_to_a_host(bus, sender):
    for _ in range(3):
        hand_over(sender, 'there')
        hand_over(sender, 'there', fakes.OTHER_UUID)
        # Who asks for what it has no right to keeps it from no other.
        hand_over(sender, 'evil')
    send(sender)
    assert bus.sent == [('hand_over', 'there'), ('hand_over', 'there'),
                        ('hand_over', 'evil')]


def test_all_notifications_of_a_server(bus, sender):
    for _ in range(3):
        sender.notify(outbox.USAGE, {'server_uuid': fakes.UUID})
    send(sender)
    assert len(bus.sent) == 3


def test_answers_push_out_no_notification(bus, sender):
    for number in range(20_000):
        hand_over(sender, 'there', f'{number:08}' + fakes.UUID[8:])
    sender.notify(outbox.USAGE, {})
    assert sender.dropped == 10_000
    send(sender)
    assert bus.sent[0] == (outbox.USAGE, None)
