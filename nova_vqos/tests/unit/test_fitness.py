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

"""The one judgement of filter and checks, and that the driver's is no other.

What the filter makes of it: test_filter.
"""

import datetime
import random

import pytest

from nova_vqos import cpu_classes
from nova_vqos import host_report
from nova_vqos import policy as policies
from nova_vqos import tuning
from nova_vqos.scheduler import fitness
from nova_vqos.tests import make_profiles
from nova_vqos.virt import admission

MAX_AGE_S = 300


def judge_of(policy, **kwargs):
    return fitness.Judge(policy, agent_max_age_s=MAX_AGE_S, **kwargs)


def ago(seconds):
    now = datetime.datetime.now(datetime.UTC)
    return (now - datetime.timedelta(seconds=seconds)).isoformat()


def make_stats(**changes):
    return {'vqos_profile': 'valid', 'vqos_slowest_cu': '60',
            'vqos_least_cu': '0.48', 'vqos_agent_seen_at': ago(10),
            'vqos_quantum_classes': 'default', 'vqos_dd_billing': 'off',
            **changes}


def test_all_reasons_are_told_and_the_first_one_is_the_filters():
    judge = judge_of(policies.ServerPolicy(
        1, units=61, quantum_class='io', dd_billing='charge'))
    stats = make_stats(vqos_agent_seen_at=ago(400))
    reasons = judge.refusals(stats)
    for part, reason in zip(('60 CU', '300 s', 'vqos:quantum_class',
                             'vqos:dd_billing'), reasons, strict=True):
        assert part in reason
    assert judge.refusal(stats) == reasons[0]


def test_nothing_is_against_a_host_that_fits():
    judge = judge_of(policies.ServerPolicy(1, units=60))
    assert judge.refusals(make_stats()) == []
    assert judge.refusal(make_stats()) == ''


def test_a_server_without_units_needs_no_speed_and_no_agent():
    judge = judge_of(policies.ServerPolicy(1, quantum_class='io'))
    assert judge.refusals({}) == ['it offers vqos:quantum_class nothing']
    assert judge.refusals({'vqos_quantum_classes': 'default,io'}) == []


@pytest.mark.parametrize(('policy', 'nothing'), [
    (None, True), (policies.ServerPolicy(2), True),
    (policies.ServerPolicy(2, quantum_class='io'), False),
    (policies.ServerPolicy(2, units=2), False)])
def test_what_asks_for_nothing(policy, nothing):
    assert fitness.asks_for_nothing(policy) is nothing


@pytest.mark.parametrize(('classes', 'units', 'in_one_class', 'speed_cu'), [
    ('', 50, True, '60'),
    ('80:100:0.1 200:400:1', 50, True, '80'),
    ('80:100:0.1 200:400:1', 81, True, '200'),
    ('80:100:0.1 200:400:1', 50, False, '60'),
    ('80:10:0.1 200:10:1', 50, True, ''),
    ('garbage', 50, True, ''),
    ('x:100:0.1', 50, True, '')])
def test_the_speed_that_counts(classes, units, in_one_class, speed_cu):
    judge = judge_of(policies.ServerPolicy(1, units=units),
                     in_one_class=in_one_class)
    stats = make_stats(vqos_classes=classes)
    assert judge.speed_cu(stats) == speed_cu
    assert judge.speed_cu({}) == ''


def test_without_units_the_slowest_pcpu_counts():
    stats = make_stats(vqos_classes='80:100:0.1 200:400:1')
    assert judge_of(policies.ServerPolicy(1)).speed_cu(stats) == '60'


def make_report(draw):
    """A host of one or two classes, and what servers left of them."""
    classes = [make_profiles.make_class(
        range(number * 4, number * 4 + 4), round(draw.uniform(0.3, 3.0), 14))
        for number in range(draw.choice((1, 2)))]
    profile = make_profiles.make_profile(
        'host', *classes, fingerprint={'tick_us': draw.choice(
            ('1000', '4000', '10000'))})
    report = host_report.HostReport(
        pcpus=profile.pcpus, profile=profile,
        problem=draw.choice(('', '', '', 'the profile is stale')),
        present=True, hook=True, agent=host_report.AgentState(
            seen_at=ago(1),
            quantum_classes=draw.choice((('default',), ('default', 'io'))),
            dd_billing=draw.choice((('off',), ('off', 'account')))))
    servers = [cpu_classes.Server(draw.randrange(1, 300), None)
               for _ in range(draw.randrange(3))]
    return report, cpu_classes.with_servers(report.all_classes, servers)


def make_policy(draw, report):
    """One whose speed is near what the host has, if not just that."""
    vcpus = draw.randrange(1, 5)
    speed_cu = draw.choice(report.profile.cpu_classes).busy.coefficient * 100
    cu = max(vcpus, int(speed_cu * vcpus * draw.choice((0.005, 0.5, 1, 1.2)))
             + draw.randrange(2))
    return policies.ServerPolicy(
        vcpus, units=cu, quantum_class=draw.choice(('default', 'io')),
        dd_billing=draw.choice(('off', 'account')))


def driver_takes(policy, report, rooms):
    """What the compute driver says, by the report itself."""
    def find_pcpus():
        if len(rooms) < 2:
            return report.pcpus
        try:
            return cpu_classes.choose(
                policy, rooms, tick_us=report.profile.tick_us).pcpus
        except cpu_classes.NoClassFits as error:
            raise admission.CannotServe(str(error)) from error

    try:
        admission.check_newcomer(policy, report, find_pcpus,
                                 periods=tuning.DEFAULT_PERIODS)
    except admission.CannotServe:
        return False
    return True


def test_the_driver_judges_alike():
    draw = random.Random(7)
    answers = []
    for _ in range(2000):
        report, rooms = make_report(draw)
        policy = make_policy(draw, report)
        reason = judge_of(policy).refusal(report.stats(rooms))
        takes = driver_takes(policy, report, rooms)
        assert takes == (not reason), (policy, report.stats(rooms), reason)
        answers.append(takes)
    assert 200 < sum(answers) < 1800
