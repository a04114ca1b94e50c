# SPDX-License-Identifier: Apache-2.0
"""What a host makes of each extra spec of a flavor."""

from collections.abc import Iterator
import typing as ty

from nova_vqos import policy
from nova_vqos import work
from nova_vqos.agent.messages import host_report
from nova_vqos.quantum import classes

ENFORCED = 'enforced'
#: By a weight, or in part by a model.
APPROXIMATED = 'approximated'
#: The server gets no place on this host.
REFUSED = 'refused'
#: The server runs here as if its flavor did not have it.
IGNORED = 'ignored'


class Capability(ty.NamedTuple):
    """What a host makes of a value of an extra spec.

    :ivar value: '': any that is valid
    :ivar state: one of the four above
    :ivar why: '' where it is enforced without more
    """

    key: str
    value: str
    state: str
    why: str = ''

    def __str__(self) -> str:
        name = f'{self.key}={self.value}' if self.value else self.key
        return ': '.join(filter(None, (name, self.state, self.why)))


def of_host(host: host_report.Host) -> list[Capability]:
    """:returns: of each key that a flavor may have, and of keys of Nova that
        contradict units
    """
    no_units = '' if host.units is not None and not host.problem else (
        'the host sells no units: ' + (host.problem or 'it has no profile'))
    return [*_units(no_units), *_quantum(host), *_billing(host, no_units),
            *_guarantee(host, no_units), _ceiling(host, no_units),
            *_burst(host, no_units), *_others()]


def _units(no_units: str) -> Iterator[Capability]:
    """:param no_units: why the host sells none; '': it does"""
    if no_units:
        for key in (policy.UNITS_KEY, policy.CAP_KEY, policy.WORK_KEY):
            yield Capability(key, '', REFUSED, no_units)
        return
    yield Capability(policy.UNITS_KEY, '', ENFORCED)
    yield Capability(policy.CAP_KEY, 'hard', ENFORCED)
    yield Capability(policy.CAP_KEY, 'floor', APPROXIMATED,
                     'a weight among all servers of the host')
    yield Capability(policy.WORK_KEY, '', ENFORCED,
                     'the host refuses kinds that its profile lacks, or does '
                     'not know well enough')
    yield Capability(policy.WORK_KEY, work.AUTO, APPROXIMATED,
                     'by what the agent measures, where it can count '
                     'instructions')


def _quantum(host: host_report.Host) -> Iterator[Capability]:
    measured = {} if host.proof is None else host.proof.classes
    for name in policy.CHOICES[policy.QUANTUM_CLASS_KEY]:
        if name == classes.AUTO and name in host.quantum_classes:
            missing = sorted(
                source for source, why in (
                    {} if host.quantum is None else host.quantum.sources
                ).items() if why)
            yield Capability(
                policy.QUANTUM_CLASS_KEY, name, APPROXIMATED,
                'it is recognised half a minute late' + (
                    f', without the sources {", ".join(missing)}'
                    if missing else ''))
        elif name in host.quantum_classes:
            yield Capability(policy.QUANTUM_CLASS_KEY, name, ENFORCED)
        elif name == classes.SPIN and classes.AUTO in host.quantum_classes:
            yield Capability(
                policy.QUANTUM_CLASS_KEY, name, REFUSED,
                'the agent gives no server pCPUs of its own: it has '
                '[vqos_agent] pool_interval_s = 0, or is an older one')
        elif name in (classes.AUTO, classes.NEUTRAL, classes.SPIN):
            yield Capability(policy.QUANTUM_CLASS_KEY, name, REFUSED,
                             'the agent sets no slices now')
        else:
            outcome = measured.get(name)
            yield Capability(
                policy.QUANTUM_CLASS_KEY, name, REFUSED,
                'its slice was not measured since the host booted'
                if outcome is None or not outcome.reason else outcome.reason)


def _billing(host: host_report.Host, no_units: str) -> Iterator[Capability]:
    for name in ('account', 'charge'):
        if name not in host.dd_billing:
            yield Capability(policy.DD_BILLING_KEY, name, REFUSED,
                             'the agent cannot store what servers used')
        elif name == 'charge' and no_units:
            yield Capability(policy.DD_BILLING_KEY, name, REFUSED, no_units)
        else:
            yield Capability(
                policy.DD_BILLING_KEY, name, APPROXIMATED,
                'threads are measured; packets and disk requests by the '
                "profile's costs of I/O, if it has any")


def _guarantee(host: host_report.Host, no_units: str) -> Iterator[Capability]:
    found = host.guarantee
    if no_units:
        for name in ('required', 'preferred'):
            yield Capability(policy.GUARANTEE_KEY, name, REFUSED, no_units)
    elif found is not None and found.free_pcpus > 0:
        for name in ('required', 'preferred'):
            yield Capability(policy.GUARANTEE_KEY, name, ENFORCED,
                             f'{found.free_pcpus:.2f} pCPUs are free')
    else:
        why = ('no CPU time is left to reserve' if found is not None else
               'the host reserves no CPU time now: see its alarms, and '
               '[vqos_agent] guarantees_speed')
        yield Capability(policy.GUARANTEE_KEY, 'required', REFUSED, why)
        yield Capability(policy.GUARANTEE_KEY, 'preferred', IGNORED,
                         f'a cap alone: {why}')


def _ceiling(host: host_report.Host, no_units: str) -> Capability:
    if not no_units and host.project_ceilings is None:
        no_units = 'the agent is too old'
    if no_units:
        return Capability(policy.PROJECT_CEILING_KEY, '', REFUSED, no_units)
    return Capability(policy.PROJECT_CEILING_KEY, '', APPROXIMATED,
                      'while the agent runs; what one server leaves unused '
                      'others have seconds later')


def _burst(host: host_report.Host, no_units: str) -> Iterator[Capability]:
    state, why = APPROXIMATED, (
        'while the agent runs, and the host has room; a balance may be '
        'overspent by what two intervals of billing use')
    if no_units:
        state, why = REFUSED, no_units
    elif not host.keeps_bursts:
        state, why = IGNORED, ('servers have their units and no more: the '
                               'agent does not keep what they save')
    for key in policy.BURST_KEY, policy.BURST_SECONDS_KEY:
        yield Capability(key, '', state, why)


def _others() -> Iterator[Capability]:
    """Extra specs of Nova, beside units."""
    for key in policy.QUOTA_KEYS:
        yield Capability(key, '', REFUSED, 'beside units, which set the same')
    for key in policy.DEDICATED_KEYS:
        yield Capability(key, '', REFUSED,
                         'beside units, which are of shared pCPUs')
    for value in policy.DEDICATED_POLICIES:
        yield Capability('hw:cpu_policy', value, REFUSED,
                         'beside units, which are of shared pCPUs')
