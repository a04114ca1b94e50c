# SPDX-License-Identifier: Apache-2.0
"""The chapter of the story about work by which no coefficient was made.

First what a visitor does: run programs of his own. Servers run them on both
hosts at equal units, and the ratio of their speeds is compared with what the
profile of fast says of work that is none of its benchmarks.

Then servers say with ``vqos:work`` which of the calibrated kinds theirs is,
and have the caps of that kind.
"""

from collections.abc import Mapping
import math

from nova_vqos import policy
from nova_vqos import work
from nova_vqos.calibration.cpu import combine
from nova_vqos_lab import client
from nova_vqos_lab import cloud as clouds
from nova_vqos_lab import gauge
from nova_vqos_lab import kinds
from nova_vqos_lab import pace
from nova_vqos_lab import results
from nova_vqos_lab import verdict
from nova_vqos_lab import watch

#: By which no host was calibrated.
PROGRAMS = ('perl', 'bzip2')
#: Kinds of the guest's work, and their names in the profile.
DECLARED = {'sha512': 'hash', 'gzip': 'compression'}
#: The name of every check that is made.
CHECKS = (*(f'program-{name}' for name in PROGRAMS), *(
    f'cap-of-{kind}-on-{host}' for kind in DECLARED
    for host in ('fast', 'slow')))

_PROMISED_CU = gauge.PROMISED_CU
_ROUNDS = 4


def run_programs(lab: clouds.Lab, cloud: client.Cloud,
                 paces: Mapping[str, pace.Pace],
                 found: results.Results) -> None:
    """Compare the speed of programs on both hosts.

    :param paces: of the hosts' pCPUs
    :param found: where checks are noted
    """
    image = kinds.make_image(cloud, PROGRAMS)
    servers = {cloud.boot(f'programs-{name}', 'units', image, name): host
               for name, host in lab.hosts.items()}
    for server in servers:
        server.wait_active()
    profile = lab.profiles.of('fast')
    bound = max(combine.error_bound(one.busy, profile.reference) or math.inf
                for one in profile.cpu_classes)
    verdicts, texts = [], []
    for program in PROGRAMS:
        speeds = watch.measure({
            server: (host, program) for server, host in servers.items()},
            rounds=_ROUNDS)
        raw, at_pace, uncertain = {}, {}, []
        for server, speed in speeds.items():
            host = servers[server].name
            during = speed.began_s, speed.ended_s
            raw[host] = speed.steady
            at_pace[host] = speed.steady / paces[host].between(*during)
            uncertain.append(paces[host].uncertainty(*during))
        error, raw_error = (each['fast'] / each['slow'] - 1
                            for each in (at_pace, raw))
        verdicts.append(verdict.of_error(
            error, bound, math.hypot(*uncertain), raw_error))
        texts.append(
            f'{error:+.1%} on fast against slow at equal units, as it was '
            f'{raw_error:+.1%}; by the profile 90 % of all work is within '
            f'{bound:.1%}')
    for program, found_verdict, text in zip(
            PROGRAMS, verdict.of_most(verdicts), texts, strict=True):
        found.check(f'program-{program}', found_verdict, text)
    client.delete_all(servers)


def run_declared(lab: clouds.Lab, cloud: client.Cloud, measuring: gauge.Gauge,
                 images: Mapping[str, str], found: results.Results) -> None:
    """Let servers have the caps of their kinds, on both hosts.

    :param images: by kind
    :param found: where checks are noted
    """
    servers = {}
    for (kind, name), host in zip(DECLARED.items(), lab.hosts, strict=True):
        cloud.make_flavor(f'units-{name}', {
            policy.UNITS_KEY: str(_PROMISED_CU), policy.WORK_KEY: name})
        servers[kind] = cloud.boot(name, f'units-{name}', images[kind], host)
    for server in servers.values():
        server.wait_active()
    for moment in 'boot', 'migrated':
        if moment == 'migrated':
            # Slow has no room for both.
            for server in sorted(servers.values(), key=lambda one: one.host,
                                 reverse=True):
                server.migrate('fast' if server.host == 'slow' else 'slow')
        for kind, server in servers.items():
            _check_cap(lab, server, kind, found)
        measuring.speeds(
            'work', {server: kind for kind, server in servers.items()},
            moment, promised_cu=_PROMISED_CU, rounds=_ROUNDS)
    client.delete_all(servers.values())


def _check_cap(lab: clouds.Lab, server: client.Server, kind: str,
               found: results.Results) -> None:
    host = server.host
    wanted = lab.profiles.cap(host, _PROMISED_CU,
                              mix=work.parse(DECLARED[kind]))
    cap = lab.hosts[host].vcpu_cap(server.domain)
    found.check(f'cap-of-{kind}-on-{host}', cap == wanted,
                f'{cap} us in the cgroup, {wanted} us by the profile')
