# SPDX-License-Identifier: Apache-2.0
"""What agents answer, made of primitives and read from them again."""

import dataclasses
import json
import types
import typing as ty

import hypothesis
from hypothesis import strategies
import pytest

from nova_vqos import plain_text
from nova_vqos import primitives
from nova_vqos.agent import manager
from nova_vqos.agent.messages import calibration
from nova_vqos.agent.messages import host_report
from nova_vqos.agent.messages import moves
from nova_vqos.agent.messages import pushes
from nova_vqos.agent.messages import server_report
from nova_vqos.agent.overrides import receiver
from nova_vqos.agent.overrides import store
from nova_vqos.tests.fixtures import agent
from nova_vqos.tests.fixtures import billing
from nova_vqos.tests.fixtures import fakes
from nova_vqos.tests.fixtures import quantum_world

REPLIES = (host_report.Host, server_report.Servers, server_report.ServerDetail,
           calibration.Calibration, pushes.PushResult, pushes.Pushed,
           pushes.PushesDifference, pushes.OverridesDifference,
           pushes.PushedDigest, moves.Lifted)

# Others are changed on the way, see the test of them.
TEXTS = strategies.text(max_size=5).map(plain_text.one_line)
LINES = strategies.text(max_size=5).map(plain_text.document)
JSON = strategies.recursive(
    strategies.none() | strategies.booleans()
    # NaN is unlike itself, and no JSON.
    | strategies.floats(allow_nan=False, allow_infinity=False)
    | strategies.integers(-10**30, 10**30) | TEXTS,
    lambda inner: strategies.lists(inner, max_size=3)
    | strategies.dictionaries(TEXTS, inner, max_size=3), max_leaves=8)


def values(kind):
    """:returns: a strategy for values of the type of a field"""
    origin, arguments = ty.get_origin(kind), ty.get_args(kind)
    if kind is object:
        return JSON
    if origin in (types.UnionType, ty.Union):
        return strategies.one_of(*map(values, arguments))
    if origin is tuple and arguments[-1] is ...:
        return strategies.lists(values(arguments[0]), max_size=2).map(tuple)
    if origin is tuple:
        return strategies.tuples(*map(values, arguments))
    if origin is not None:
        return strategies.dictionaries(TEXTS, values(arguments[1]), max_size=2)
    if primitives._is_record(kind):
        return strategies.builds(kind, **{
            name: values(one) for name, one in ty.get_type_hints(kind).items()
            if name in {field.name for field in primitives._fields(kind)}})
    return {bool: strategies.booleans(), str: TEXTS, primitives.Lines: LINES,
            int: strategies.integers(-2**63, 2**63),
            float: strategies.floats(-1e15, 1e15),
            types.NoneType: strategies.none()}[kind]


@hypothesis.given(JSON, strategies.sampled_from(REPLIES))
def test_any_answer_is_read_or_refused(data, kind):
    try:
        assert isinstance(primitives.parse(kind, data), kind)
    except primitives.MessageInvalid:
        pass


@hypothesis.given(strategies.data(), strategies.sampled_from(REPLIES))
@hypothesis.settings(suppress_health_check=[hypothesis.HealthCheck.too_slow])
def test_a_message_survives_a_round_trip(data, kind):
    made = data.draw(values(kind))
    sent = json.loads(json.dumps(primitives.to_primitives(made)))
    assert primitives.parse(kind, sent) == made


@hypothesis.given(strategies.data(), strategies.sampled_from(REPLIES), JSON)
@hypothesis.settings(suppress_health_check=[hypothesis.HealthCheck.too_slow])
def test_one_field_that_is_broken_is_refused_or_read(data, kind, other):
    sent = primitives.to_primitives(data.draw(values(kind)))
    place = sent
    while True:
        name = data.draw(strategies.sampled_from(sorted(place)))
        if not isinstance(place[name], dict) or not place[name] or data.draw(
                strategies.booleans()):
            break
        place = place[name]
    place[name] = other
    try:
        primitives.parse(kind, sent)
    except primitives.MessageInvalid:
        pass


@pytest.mark.parametrize(('data', 'problem'), [
    (None, 'must be a mapping'), ({}, "host is missing"),
    ({'host': 5}, "'host': must be a text"),
    ({'host': 'a', 'at': '', 'servers': {}}, "'servers': must be a list"),
    ({'host': 'a', 'at': '', 'servers': [{'server_uuid': 'x', 'rates': {
        'over_s': 'long', 'delivered_cu': 1, 'throttled': 0}}]},
     "'servers': 0: 'rates': 'over_s': must be a number"),
    ({'host': 'a', 'at': '', 'servers': [
        {'server_uuid': 'x', 'entitled_cu': 10**400}]}, 'whole number'),
    ({'host': 'a', 'at': '', 'servers': [
        {'server_uuid': 'x', 'entitled_cu': True}]}, 'whole number'),
    ({'host': 'a', 'at': '', 'servers': [
        {'server_uuid': 'x', 'coefficient': float('nan')}]}, 'a number'),
    ({'host': 'a', 'at': '', 'servers': [
        {'server_uuid': 'x', 'right': 1}]}, 'true or false'),
    ({'host': 'a', 'at': '', 'servers': [
        {'server_uuid': 'x', 'booted': {'cap': 1}}]}, "'cap': must be a text"),
])
def test_an_error_names_the_field(data, problem):
    with pytest.raises(primitives.MessageInvalid, match=problem):
        primitives.parse(server_report.Servers, data)


def test_another_version_may_know_less_and_more():
    found = primitives.parse(server_report.Servers, {
        'host': 'a', 'at': '', 'mood': 'fine',
        'servers': [{'server_uuid': 'x', 'policy': {'vcpus': 2, 'new': 1}}]})
    assert found.servers[0].policy.vcpus == 2
    assert found.servers[0].arriving is None


def check_answers(world, endpoint):
    """Each answer of an agent is read as it was made."""
    answers = {
        host_report.Host: lambda: endpoint.get_host({}),
        server_report.Servers: lambda: endpoint.list_servers({}),
        server_report.ServerDetail: lambda: endpoint.get_server(
            {}, server_uuid=fakes.UUID),
        calibration.Calibration: lambda: endpoint.get_profile(
            {}, document=True)}
    for kind, ask in answers.items():
        answer = world.ask(ask)
        assert json.loads(json.dumps(answer)) == answer
        found = primitives.parse(kind, answer)
        assert primitives.to_primitives(found) == answer
        assert {field.name for field in dataclasses.fields(kind)} == {
            *answer.keys()}


def test_what_a_real_agent_bills_is_read_again(tmp_path):
    world = billing.World(tmp_path)
    world.run()
    world.busy(20)
    assert world.report()['bill'] is not None
    check_answers(world, manager.AgentManager(world.loop, 'here'))


def test_its_slices_are_read_again(tmp_path, monkeypatch):
    world = quantum_world.QuantumWorld(tmp_path, monkeypatch)
    world.run()
    world.tick(12)
    assert world.report()['quantum']['vcpus']
    check_answers(world, manager.AgentManager(world.loop, 'here'))


def test_its_pushes_are_read_again(tmp_path):
    held = store.OverrideStore(str(tmp_path / 'pushed.json'))
    world = agent.World(tmp_path, store=held)
    world.start()
    endpoint = manager.AgentManager(
        world.loop, 'here',
        push_receiver=receiver.Receiver(
            held, world.loop.follow_pushed, world.loop.pushed_report, 'here'))
    flavors = {'f1': {'name': 'small', 'vcpus': 2, 'units': 60,
                      'quantum_class': 'io', 'dd_billing': 'off',
                      'guarantee': 'off'}}
    for kind, ask in (
            (pushes.PushResult, lambda: endpoint.push_policies(
                {}, generation=store.now_us(), flavors=flavors)),
            (pushes.Pushed, lambda: endpoint.get_pushed({})),
            (pushes.PushedDigest, lambda: endpoint.get_pushed_digest({})),
            (pushes.PushesDifference, lambda: endpoint.compare_pushes(
                {}, digest='')),
            (pushes.OverridesDifference, lambda: endpoint.compare_pushed(
                {}, digest=''))):
        answer = world.ask(ask)
        assert answer['host'] == 'here'
        found = primitives.parse(kind, answer)
        assert primitives.to_primitives(found) == answer


def test_texts_of_others_cannot_steer_a_terminal():
    read = primitives.parse(moves.Refusal, {'reason': 'a\x1b[2J\u202e b'})
    assert read.reason == 'a\\x1b[2J\\u202e b'


def test_texts_of_others_cannot_write_log_lines():
    read = primitives.parse(calibration.Calibration, {
        'host': 'a\nERROR b', 'alarms': ['a\r\nb'], 'profile': None,
        'document': 'a:\n\t- b\x1b\n'})
    assert (read.host, read.alarms) == ('a\\nERROR b', ('a\\r\\nb',))
    # But a document has lines.
    assert read.document == 'a:\n\t- b\\x1b\n'
