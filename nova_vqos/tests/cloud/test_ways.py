# SPDX-License-Identifier: Apache-2.0
"""Ways that need more than one real host: cold moves, lost hosts, crowds."""

import concurrent.futures
import contextlib

import libvirt
import pytest

from nova_vqos import policy
from nova_vqos import units
from nova_vqos.calibration import guest
from nova_vqos_lab import administrator
from nova_vqos_lab import changes
from nova_vqos_lab import client
from nova_vqos_lab import cloud as clouds
from nova_vqos_lab import config
from nova_vqos_lab import process
from nova_vqos_lab import soak_checks

CU = 20
LARGER_CU = 30
FLAVORS = {'ways': CU, 'ways-larger': LARGER_CU}
AT_ONCE = 30
LIMIT_S = 120
# So that a migration takes some seconds.
SLOW_KBIT_S = 40_000

# The story, which the first test waits for, has limits of its own.
pytestmark = pytest.mark.timeout(600, func_only=True)


@pytest.fixture(scope='module')
def cloud(lab, told):
    assert lab.is_deployed, told.checks[-1]
    with lab.cloud() as made:
        for name, cu in FLAVORS.items():
            made.make_flavor(name, {policy.UNITS_KEY: str(cu)})
        made.make_image('ways', guest.find_kernel(), clouds.initramfs(),
                        config.IDLE_GUEST)
        yield made


@pytest.fixture
def server(cloud):
    made = cloud.boot('ways', 'ways', cloud.find_image('ways'), 'slow')
    made.wait_active()
    yield made
    made.delete()


def act(server, body, *statuses):
    """Ask for something, and wait until the server is in one of statuses."""
    answer = server.cloud.compute(
        'POST', f'/servers/{server.uuid}/action', body)
    assert answer.status in (200, 202, 204), answer.message

    def done():
        shown = server.show()
        return shown if (shown['status'] in (*statuses, 'ERROR')
                         and not shown['OS-EXT-STS:task_state']) else None

    shown = process.wait_until(done, LIMIT_S, f'{body} of {server.name}',
                               interval_s=0.25)
    assert shown['status'] in statuses, shown.get('fault')


def check(lab, server, host, cu):
    """It is on a host, with the cap and, there alone, the claim of its units.
    """
    check_cap(lab, server, host, cu)
    assert {provider: claim[policy.RESOURCE_CLASS] for provider, claim
            in server.allocations().items()} == {
                server.cloud.provider(host): cu}


def check_cap(lab, server, host, cu):
    assert server.host == host
    assert lab.hosts[host].vcpu_cap(server.domain) == cap(lab, host, cu)


def cap(lab, host, cu):
    """Quota and period of a server of one vCPU on a host."""
    profile = lab.profiles.of(host)
    found = units.cap(cu, 1, profile.slowest(lab.hosts[host].pcpus),
                      tick_us=profile.tick_us, period_us=config.period_us())
    return found.quota_us, found.period_us


def claimed(cloud, lab):
    return {name: cloud.usages(name).get(policy.RESOURCE_CLASS, 0)
            for name in lab.hosts}


def wait_claimed(cloud, lab, wanted):
    process.wait_until(lambda: claimed(cloud, lab) == wanted, LIMIT_S,
                       'the claims of one host', interval_s=0.5)


def test_a_cold_migration_confirmed(lab, cloud, server):
    act(server, {'migrate': {'host': 'fast'}}, 'VERIFY_RESIZE')
    check(lab, server, 'fast', CU)
    # In case that it goes back.
    assert claimed(cloud, lab) == {'fast': CU, 'slow': CU}
    act(server, {'confirmResize': None}, 'ACTIVE')
    check(lab, server, 'fast', CU)
    # Nova deletes the claim of the source a moment later.
    wait_claimed(cloud, lab, {'fast': CU, 'slow': 0})


def test_a_resize_to_another_host_reverted(lab, cloud, server):
    with disabled(cloud, 'slow'):
        act(server, {'resize': {'flavorRef': 'ways-larger'}}, 'VERIFY_RESIZE')
        check(lab, server, 'fast', LARGER_CU)
        act(server, {'revertResize': None}, 'ACTIVE')
    check(lab, server, 'slow', CU)
    assert claimed(cloud, lab) == {'fast': 0, 'slow': CU}


def test_a_host_is_lost_and_returns(lab, cloud, server):
    domain = server.domain
    with changes.lost(lab, 'slow', cloud):
        act(server, {'evacuate': {}}, 'SHUTOFF')
        # NOTE: Nova sends requests to the lost host until then
        # (finish_evacuation() in nova/compute/resource_tracker.py).
        process.wait_until(lambda: server.host == 'fast', LIMIT_S,
                           'its new host')
        # Nova leaves it to its owner to start it.
        act(server, {'os-start': None}, 'ACTIVE')
        # The claim of the lost host is removed when that returns.
        check_cap(lab, server, 'fast', CU)
    process.wait_until(lambda: not is_defined(lab, 'slow', domain), LIMIT_S,
                       'the end of what was evacuated', interval_s=0.5)
    wait_claimed(cloud, lab, {'fast': CU, 'slow': 0})
    check(lab, server, 'fast', CU)


@pytest.mark.rotation
def test_nova_compute_is_killed_in_a_live_migration(lab, cloud, server):
    """libvirt ends or aborts what Nova has forgotten. The cap is right either
    way, and doing all that the audit says ends all differences.
    """
    domain = server.domain
    with lab.network.slowed('slow', SLOW_KBIT_S):
        server.request_migration('fast')
        process.wait_until(
            lambda: 'running' in migrations(server), LIMIT_S,
            'the migration to run', interval_s=0.1)
        lab.nodes['slow'].process_of('nova-compute').kill()
    process.wait_until(lambda: not is_migrating(lab, 'slow', domain), LIMIT_S,
                       'the end of the migration', interval_s=0.5)

    def where():
        found = [name for name in lab.hosts if runs(lab, name, domain)]
        return found if len(found) == 1 else None
    # For a moment both have it, or none.
    (host,) = process.wait_until(where, LIMIT_S, 'one host that runs it')
    wanted = cap(lab, host, CU)
    process.wait_until(lambda: lab.hosts[host].vcpu_cap(domain) == wanted, 5,
                       'the right cap')
    lab.nodes['slow'].start_compute()
    server.wait_idle()
    assert (server.host, server.show()['status']) == ('slow', 'ACTIVE')
    found = {(row['kind'], row['host'])
             for row in administrator.differences(lab)}
    assert ('runs-elsewhere' if host == 'fast' else 'claim-elsewhere',
            'fast') in found
    administrator.follow_audit(lab, cloud)
    assert administrator.differences(lab) == []
    check(lab, server, 'slow', CU)


@pytest.mark.rotation
def test_thirty_boots_at_once(lab, cloud):
    """As many as fit, and no unit more, whoever comes first."""
    image = cloud.find_image('ways')

    def boot(number):
        with lab.cloud() as own:
            return own.boot(f'crowd-{number}', 'ways', image).uuid

    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        crowd = [client.Server(cloud, uuid, uuid) for uuid
                 in pool.map(boot, range(AT_ONCE))]
    try:
        refused = [one for one in crowd if one.wait_settled()]
        started = [one for one in crowd if one not in refused]
        room = {name: cloud.capacity_cu(name) // CU for name in lab.hosts}
        assert claimed(cloud, lab) == {
            name: CU * sum(one.host == name for one in started)
            for name in lab.hosts}
        for name, most in room.items():
            assert claimed(cloud, lab)[name] <= most * CU
        assert len(started) <= sum(room.values())
        # Placement refuses claims that meet, and Nova tries a few more times.
        assert len(started) >= sum(room.values()) // 2
        for one in started:
            check(lab, one, one.host, CU)
    finally:
        for one in crowd:
            cloud.compute('DELETE', f'/servers/{one.uuid}')
        process.wait_until(lambda: not soak_checks.servers(cloud), LIMIT_S,
                           'the end of the crowd', interval_s=0.5)


@contextlib.contextmanager
def disabled(cloud, host):
    path = cloud.compute_service(host)
    cloud.compute('PUT', path, {'status': 'disabled'})
    try:
        yield
    finally:
        cloud.compute('PUT', path, {'status': 'enabled'})


def runs(lab, host, domain):
    return domain in soak_checks.guests(lab.hosts[host]).values()


def is_migrating(lab, host, name):
    with contextlib.closing(
            libvirt.openReadOnly(lab.hosts[host].libvirt_uri)) as one:
        try:
            job, *_ = one.lookupByName(name).jobInfo()
        except libvirt.libvirtError:
            # It is gone.
            return False
    return job != libvirt.VIR_DOMAIN_JOB_NONE


def is_defined(lab, host, name):
    with contextlib.closing(
            libvirt.openReadOnly(lab.hosts[host].libvirt_uri)) as one:
        return name in [domain.name() for domain in one.listAllDomains()]


def migrations(server):
    """The states of what moves it."""
    shown = server.cloud.compute('GET', f'/servers/{server.uuid}/migrations')
    return [one['status'] for one in shown.body['migrations']]
