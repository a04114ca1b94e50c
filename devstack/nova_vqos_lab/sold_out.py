# SPDX-License-Identifier: Apache-2.0
"""The chapter of the story in which a host is sold out.

``fast`` has both pCPUs of the machine and guarantees speed. It is sold out,
and its own processes spin beside: a server of stock Nova, one with a cap and
one with a guarantee, 60 CU each, show what that leaves them. Here CPU time is
measured, at the calibrated speed of the pCPU: the machine's pace would have to
be measured on a pCPU of which nothing is left. So the servers need no
operating system, which takes time to boot: they spin.
"""

from collections.abc import Mapping
import time

from nova_vqos import host_stats
from nova_vqos import policy
from nova_vqos_lab import cgroups
from nova_vqos_lab import client
from nova_vqos_lab import gauge
from nova_vqos_lab import host as hosts
from nova_vqos_lab import noise
from nova_vqos_lab import process
from nova_vqos_lab import results
from nova_vqos_lab import rom

#: The name of every check that is made.
CHECKS = ('sold-out-host-takes-no-more', 'guarantee-holds-sold-out',
          'guarantee-holds-beside-noise', 'cap-alone-yields-to-noise')

_PROMISED_CU = gauge.PROMISED_CU
# By what promises that to a server, the flavor.
_COMPARED = {'stock': 'stock-quota', 'units': 'units', 'guarantee': 'sure'}
# Instead of a kind of work.
_CPU_TIME = 'CPU time'
_CPU_TIME_S = 6.0
_TOLERANCE = 0.03
_TRIES = 3
_SPINNERS = 8
# At a quarter of a pCPU, and with all others that begin.
_BOOT_LIMIT_S = 120


def run(host: hosts.Host, cloud: client.Cloud, images: Mapping[str, str],
        pcpu_cu: float, found: results.Results, *, stays: bool) -> None:
    """Sell a host out, and see what servers on it get.

    :param host: which guarantees speed
    :param images: ``boot-sector`` and ``idle``
    :param pcpu_cu: the speed of its pCPUs
    :param found: where measurements and checks are noted
    :param stays: whether the cloud is used afterwards
    """
    sure = {'vqos:guarantee': 'required',
            f'trait:{host_stats.TRAIT_GUARANTEE}': 'required'}
    sold = cloud.inventory(host.name)[policy.RESOURCE_CLASS]
    sold_cu = sold['total'] - sold['reserved']
    # With their I/O, which Placement does not count.
    filler_cu = (sold_cu - 2 * _PROMISED_CU) * 95 // 200
    cloud.make_flavor('sure', {policy.UNITS_KEY: str(_PROMISED_CU), **sure})
    cloud.make_flavor('filler', {policy.UNITS_KEY: str(filler_cu), **sure})
    with noise.spinners(host, _SPINNERS) as spinning:
        servers = _boot_spinning(cloud, images['boot-sector'], host, {
            **_COMPARED, 'busy-0': 'filler', 'busy-1': 'filler'})
        compared = {name: servers[name] for name in _COMPARED}
        one_more = cloud.boot('one-too-many', 'units', images['idle'],
                              host.name)
        reason = one_more.wait_settled()
        used_cu = cloud.usages(host.name)[policy.RESOURCE_CLASS]
        found.check(
            'sold-out-host-takes-no-more', 'No valid host' in reason,
            f'{used_cu} of {sold_cu} CU are sold: '
            f'{reason or "one more booted"}')
        measured = {}
        measured['sold out'] = _undelayed_cu(host, compared, pcpu_cu)
        with spinning():
            measured['noise'] = _undelayed_cu(host, compared, pcpu_cu)
    if stays:
        client.delete_all((*servers.values(), one_more))
    for moment, each_cu in measured.items():
        for story, cu in each_cu.items():
            found.measurements.append(results.Measurement(
                story, host.name, moment, _CPU_TIME, _PROMISED_CU,
                round(cu, 2), round(cu, 2), 1.0))
            process.say(f'          {story}: {cu:.1f} of {_PROMISED_CU} CU, '
                        f'{moment}')
    for moment, name in (('sold out', 'guarantee-holds-sold-out'),
                         ('noise', 'guarantee-holds-beside-noise')):
        cu = measured[moment]['guarantee']
        error = cu / _PROMISED_CU - 1
        found.check(name, abs(error) <= _TOLERANCE,
                    f'{cu:.1f} of {_PROMISED_CU} CU, {error:+.1%}, wanted: '
                    f'within {_TOLERANCE:.0%}')
    noisy = measured['noise']
    found.check(
        'cap-alone-yields-to-noise',
        noisy['units'] + noisy['stock'] < 2 * _PROMISED_CU * 0.9,
        f'with a cap {noisy["units"]:.1f}, by stock Nova '
        f'{noisy["stock"]:.1f} of {_PROMISED_CU} CU: without that, this would '
        'show nothing')


def _boot_spinning(cloud: client.Cloud, image: str, host: hosts.Host,
                   flavors: Mapping[str, str]) -> dict[str, client.Server]:
    """Boot servers, and wait until they spin.

    :param flavors: by name of the server
    """
    made = {name: cloud.boot(name, flavor, image, host.name)
            for name, flavor in flavors.items()}
    for server in made.values():
        server.wait_active()
    for server in made.values():
        process.wait_until(
            lambda server=server: rom.PRINTED.decode() in server.console(),
            _BOOT_LIMIT_S, f'the boot of {server.name}', interval_s=0.5)
    return made


def _undelayed_cu(host: hosts.Host, compared: Mapping[str, client.Server],
                  pcpu_cu: float) -> dict[str, float]:
    """Measure once more what is too little: the machine may have stood still.

    :returns: as _cpu_time_cu()
    """
    for _ in range(_TRIES):
        found = _cpu_time_cu(host, compared, pcpu_cu)
        if found['guarantee'] >= _PROMISED_CU * (1 - _TOLERANCE):
            break
    return found


def _cpu_time_cu(host: hosts.Host, compared: Mapping[str, client.Server],
                 pcpu_cu: float) -> dict[str, float]:
    """:returns: what servers get, by their vCPUs' CPU time

    :param compared: by the part of the story that they stand for
    """
    groups = {story: host.vcpu_cgroup(server.domain)
              for story, server in compared.items()}

    def used_ns() -> dict[str, int]:
        return {story: cgroups.cpu_time_ns(host.hierarchy, group)
                for story, group in groups.items() if group}

    before, began_ns = used_ns(), time.monotonic_ns()
    # The length of the measurement.
    time.sleep(_CPU_TIME_S)
    after, wall_ns = used_ns(), time.monotonic_ns() - began_ns
    return {story: (after[story] - before[story]) / wall_ns * pcpu_cu
            for story in before}
