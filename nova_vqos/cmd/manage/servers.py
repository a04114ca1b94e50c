# SPDX-License-Identifier: Apache-2.0
"""nova-vqos-manage server list and server show."""

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
import contextlib
import statistics
import typing as ty
import uuid

from cliff import lister
from cliff import show

from nova_vqos.agent import fanout
from nova_vqos.agent import rpcapi
from nova_vqos.agent.messages import enforcement
from nova_vqos.agent.messages import server_report
from nova_vqos.cmd.manage import command
from nova_vqos.cmd.manage import errors
from nova_vqos.cmd.manage import output

_BILL_FIELDS = ('bill', 'rolling_4h_cu', 'limit_cu', 'debt_cu_s',
                'written_off_cu_s')
# The component of a bill that is no I/O, see nova_vqos.billing.meter.
_VCPU = 'vcpu'


class Placed(ty.NamedTuple):
    """A server where it runs."""

    host: str
    server: server_report.Server


def quantum_class(one: Placed) -> str:
    """Its class in force, and the class that was recognised."""
    name = one.server.quantum_class or ''
    slices = one.server.quantum
    found = slices and slices.recognised_class
    return f'{name}: {found}' if found else name


def slice_us(one: Placed) -> int | None:
    """The shortest of its vCPUs; None: the kernel's own, or unknown."""
    return min((vcpu.slice_us for vcpu in _vcpus(one)
                if vcpu.slice_us is not None), default=None)


def run_us(one: Placed) -> float | None:
    """For how long its vCPUs ran at a time, on average."""
    runs_us = [vcpu.mean_run_us for vcpu in _vcpus(one)
               if vcpu.mean_run_us is not None]
    return statistics.fmean(runs_us) if runs_us else None


def dd_cu(one: Placed) -> float | None:
    """CU that the host spent on its I/O lately: all but its vCPUs."""
    bill = one.server.bill
    return None if bill is None else sum(
        used for name, used in bill.used_lately_cu.items()
        if name != _VCPU)


def delivered_cu(one: Placed) -> float | None:
    rates = one.server.rates
    return rates.delivered_cu if rates else None


def throttled(one: Placed) -> float | None:
    rates = one.server.rates
    return rates.throttled if rates else None


def debt_cu_s(one: Placed) -> float | None:
    bill = one.server.bill
    return bill.debt_cu_s if bill else None


def is_guaranteed(one: Placed) -> bool | None:
    """Whether its speed is; None: its flavor asks for no guarantee."""
    found = one.server.guarantee
    return None if found is None or found.ends else found.since is not None


def is_wrong(one: Placed) -> bool:
    """Whether it is not capped or guaranteed as wanted, or has a problem."""
    found = one.server.guarantee
    return (one.server.right is False or bool(one.server.problem)
            or is_guaranteed(one) is False
            or found is not None and bool(found.problem))


#: Columns of a list, and of a long one the rest.
SHORT: Mapping[str, Callable[[Placed], ty.Any]] = {
    'server_uuid': lambda one: one.server.server_uuid,
    'host': lambda one: output.Shown(
        one.host,
        f'{one.host} (arriving)' if one.server.arriving else one.host),
    'flavor': lambda one: one.server.flavor,
    'entitled_cu': lambda one: output.number(one.server.entitled_cu),
    'delivered_cu': lambda one: output.number(delivered_cu(one), 1),
    'throttled': lambda one: output.share(throttled(one)),
    'dd_cu': lambda one: output.number(dd_cu(one), 1),
    'debt_cu_s': lambda one: output.number(debt_cu_s(one), 1),
    'class': quantum_class,
    'right': lambda one: output.flag(one.server.right),
}
LONG: Mapping[str, Callable[[Placed], ty.Any]] = {
    **SHORT,
    'arriving': lambda one: bool(one.server.arriving),
    'name': lambda one: one.server.name,
    'project_id': lambda one: one.server.project_id,
    'dd_billing': lambda one: one.server.dd_billing,
    'slice_us': lambda one: output.number(slice_us(one)),
    'run_us': lambda one: output.number(run_us(one)),
    'last_recap': lambda one: recap(one.server.last_recap),
    'guaranteed': lambda one: output.flag(is_guaranteed(one)),
    'problem': lambda one: one.server.problem,
}


def recap(last: enforcement.Recap | None) -> output.Shown:
    """When a cap was last set anew, why, and how long it was wrong."""
    if last is None:
        return output.text(None)
    return output.Shown(
        last, f'{last.at}: {last.reason}, '
        + ('wrong for an unknown time' if last.wrong_ms is None
           else f'wrong for {last.wrong_ms:.0f} ms'))


def _last_tampering(tamperings: Sequence[enforcement.Tampering] | None) -> str:
    if not tamperings:
        return ''
    last = tamperings[-1]
    return f'{last.seen_at}: {last.found}, {last.channel}'


def fields(host: str, server: server_report.ServerDetail
           ) -> list[tuple[str, ty.Any]]:
    """Names and values of one server."""
    one = Placed(host, server)
    return [
        ('server_uuid', server.server_uuid), ('host', host),
        ('name', server.name), ('project_id', server.project_id),
        ('flavor', server.flavor), ('origin', server.origin),
        ('arriving', server.arriving), ('entitled_cu', server.entitled_cu),
        ('work', server.policy.work if server.policy else ''),
        ('correction', _correction(server.correction)),
        ('ceiling', _ceiling(server.ceiling)),
        ('burst', _burst(server.burst)),
        ('delivered_cu', _delivered(server.rates)),
        ('delivered_10s_cu', _delivered(server.rates_10s)),
        ('delivered_5min_cu', _delivered(server.rates_5min)),
        ('throttled', output.Shown(
            throttled(one), f'{throttled(one) or 0:.1%}')),
        ('coefficient', _rounded(server.coefficient, 4)),
        ('clock', _clock(server.clock)),
        ('clock_problem', server.clock_problem),
        ('clock_coefficient', _rounded(
            server.clock.coefficient if server.clock else None, 4)),
        ('vcpu_s', _rounded(server.vcpu_s, 1)),
        ('throttled_s', _rounded(server.throttled_s, 1)),
        ('emulator_memory', _memory(server.emulator_memory)),
        ('right', output.flag(server.right)),
        ('wanted', _cap(server.wanted)),
        ('last_recap', recap(server.last_recap)),
        ('guarantee', _guarantee(server.guarantee)),
        ('dd_billing', server.dd_billing),
        *_bill_fields(server.bill),
        ('disk_limit', _disk_limit(server.disk_limit)),
        ('class', quantum_class(one)),
        ('slices', _slices(server.quantum)),
        ('writes', server.writes),
        ('tampering_count', server.tampering_count),
        ('tamperings', output.Shown(
            server.tamperings, _last_tampering(server.tamperings))),
        ('problem', server.problem),
        ('policy_error', server.policy_error),
    ]


class ListServers(command.ManageCommand, lister.Lister):
    """Show all servers: their units, speed and debt.

    Over about the last minute: delivered is the speed of the server's vCPUs,
    throttled the share of the time for which limits held them back, dd_cu the
    speed that the host spent on its I/O. Debt is I/O that it has yet to pay.
    """

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        command.add_hosts(parser)
        add_filters(parser)
        parser.add_argument(
            '--long', action='store_true',
            help="more columns: the hypervisor's name, project, slice, mean "
                 'run, the last time that the cap was set')

    def take_action(self, parsed_args: argparse.Namespace) -> ty.Any:
        answers = self.ask(self.hosts(parsed_args), rpcapi.LIST_SERVERS)
        found = select(answers, parsed_args)
        if parsed_args.project and not (found or parsed_args.wrong):
            self.app.LOG.warning(
                'No host that answered has a server of project %s: --project '
                'takes an ID of openstack project list', parsed_args.project)
        shown = LONG if parsed_args.long or parsed_args.columns else SHORT
        return tuple(shown), [tuple(column(one) for column in shown.values())
                              for one in found]


class ShowServer(command.ManageCommand, show.ShowOne):
    """Show one server: its units, bill, slices and cap.

    Nova says where it runs. With --host Nova is not asked, but the agents of
    those hosts, and the server must be given by its UUID.
    """

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument('server', metavar='SERVER',
                            help='UUID, or name in Nova')
        command.add_hosts(parser)

    def take_action(self, parsed_args: argparse.Namespace) -> ty.Any:
        server_uuid, host = locate(self, parsed_args.server,
                                   parsed_args.hosts)
        if host:
            # It may be migrating to another host.
            answer = self._ask({host}, server_uuid)
            if answer is None:
                answer = self._ask((), server_uuid)
        else:
            answer = self._ask(parsed_args.hosts, server_uuid)
        if answer is None:
            raise runs_nowhere(server_uuid, parsed_args.hosts)
        return zip(*fields(*answer), strict=True)

    def _ask(self, hosts: Iterable[str], server_uuid: str
             ) -> tuple[str, server_report.ServerDetail] | None:
        """:returns: the host that has it, and its answer; None: none has"""
        answers = self.ask_quietly(
            self.connections.hosts(hosts), rpcapi.GET_SERVER,
            server_uuid=server_uuid)
        found = [(one.host, one.value) for one in answers
                 if one.value is not None]
        if found:
            # Where its guest runs, rather than where it migrates to.
            return min(found, key=lambda one: bool(one[1].arriving))
        self.warn([one for one in answers
                   if rpcapi.NOT_HERE not in one.error], len(answers))
        return None


def runs_nowhere(server_uuid: str, asked: Iterable[str]
                 ) -> errors.ManageError:
    """The error where no agent has a server.

    :param asked: hosts of --host; none: Nova was asked
    """
    hosts = ', '.join(sorted(asked))
    return errors.ManageError(
        f'server {server_uuid} runs on none of the hosts {hosts}, as far as '
        'their agents answer: leave --host out to ask Nova' if hosts else
        f'server {server_uuid} runs on no host whose agent answers: '
        'nova-vqos-manage host list shows which do')


def locate(asking: command.ManageCommand, given: str,
           hosts: Sequence[str]) -> tuple[str, str]:
    """Find a server.

    :param asking: the command that asks Nova
    :param given: its UUID; its name where Nova is asked
    :param hosts: those of --host; none: Nova is asked
    :returns: its UUID, and its host in Nova, or ''
    :raises ManageError: when there is none
    """
    if hosts:
        found = None
        with contextlib.suppress(ValueError):
            found = str(uuid.UUID(given))
        if found is None or len(found) != len(given):
            raise errors.ManageError(
                f'{given!r} is no UUID: without --host, Nova is asked for the '
                'server of this name')
        return found, ''
    return asking.connections.cloud().locate(given)


def add_filters(parser: argparse.ArgumentParser) -> None:
    """Add the options of :func:`select`."""
    parser.add_argument(
        '--project', metavar='ID', help='only servers of this project')
    parser.add_argument(
        '--wrong', action='store_true',
        help='only servers whose cap is not as wanted, or that have another '
             'problem')


def select(answers: Iterable[fanout.Answer[server_report.Servers]],
           parsed_args: argparse.Namespace) -> list[Placed]:
    """Servers by the options of :func:`add_filters`."""
    return [
        placed for one in answers if one.value is not None
        for placed in (Placed(one.host, server)
                       for server in one.value.servers)
        if parsed_args.project in (None, placed.server.project_id)
        and (not parsed_args.wrong or is_wrong(placed))]


def _rounded(value: float | None, digits: int) -> output.Shown:
    """For people; others get all digits."""
    return output.Shown(value, '' if value is None else f'{value:.{digits}f}')


def _delivered(rates: server_report.Rates | None) -> output.Shown:
    if rates is None or rates.delivered_cu is None:
        return output.text(None)
    return output.Shown(
        rates.delivered_cu,
        f'{rates.delivered_cu:.2f} over {rates.over_s:.0f} s')


def _clock(found: server_report.Clock | None) -> output.Shown:
    if found is None:
        return output.text(None)
    lines = [f'{found.mhz:.0f} MHz '
             + ('in its own CPU time' if found.is_own
                else 'of the pCPUs that it may run on, idle or not')]
    if found.calibrated_mhz is not None:
        lines.append(f'{found.calibrated_mhz:.0f} MHz when they were '
                     'calibrated')
    return output.Shown(found, '\n'.join(lines))


def _memory(found: server_report.EmulatorMemory | None) -> output.Shown:
    if found is None:
        return output.text(None)
    low_mib, high_mib = (
        f'{value / 2**20:.1f}' for value in (found.low_bytes,
                                             found.high_bytes))
    return output.Shown(
        found, f'{low_mib} MiB' if found.low_bytes == found.high_bytes
        else f'at least {low_mib} MiB, at most {high_mib} MiB')


def _vcpus(one: Placed) -> Iterable[enforcement.Vcpu]:
    slices = one.server.quantum
    return () if slices is None else slices.vcpus.values()


def _cap(wanted: enforcement.Wanted | None) -> output.Shown:
    if wanted is None:
        return output.text(None)
    return output.Shown(
        wanted, 'no limit' if wanted.quota_us is None else
        f'{wanted.quota_us} of {wanted.period_us} us for each vCPU')


def _guarantee(found: enforcement.Guarantee | None) -> output.Shown:
    if found is None:
        return output.text(None)
    if found.since is None and not found.ends:
        return output.Shown(found, f'not guaranteed: {found.problem}')
    when = ('off, reserved until it stops' if found.ends
            else f'since {found.since}')
    return output.Shown(
        found, f'{when}: {found.runtime_us} of '
        f'{found.period_us} us for each vCPU, {found.reserved_pcpus:.2f} '
        'pCPUs with its I/O'
        + ('' if found.counted is None else
           f', of whose seconds the kernel counts {found.counted:.0%} at this '
           'clock')
        + (f', {found.problem}' if found.problem else ''))


def _correction(found: enforcement.Correction | None) -> output.Shown:
    if found is None:
        return output.text(None)
    lines = [f'{found.factor:.3f} since {found.since}' if found.since
             else 'none yet']
    if None not in (found.predicted, found.low, found.high):
        lines.append(f'predicted {found.predicted:.3f}, {found.low:.3f} to '
                     f'{found.high:.3f} with 90 %')
    if found.instructions_per_cpu_s is not None:
        lines.append(
            f'{found.instructions_per_cpu_s / 1e6:.1f} million instructions '
            f'per CPU second in {found.windows} windows')
    if found.problem:
        lines.append(found.problem)
    return output.Shown(found, '\n'.join(lines))


def _ceiling(found: enforcement.ServerCeiling | None) -> output.Shown:
    if found is None:
        return output.text(None)
    return output.Shown(
        found, f'{found.left_cu:.2f} CU now, of {found.ceiling_cu} CU that '
        f'{found.servers} servers of its project share on this host')


def _burst(found: enforcement.Burst | None) -> output.Shown:
    if found is None:
        return output.text(None)
    saved = ('unknown' if found.saved_cu_s is None
             else f'{found.saved_cu_s:.0f}')
    lines = [f'{found.left_cu:.2f} CU now, {found.burst_cu} CU at the most; '
             f'{saved} of {found.most_saved_cu_s:.0f} CU seconds saved']
    return output.Shown(found, '\n'.join(
        lines + [found.problem] * bool(found.problem)))


def _disk_limit(found: enforcement.DiskLimit | None) -> output.Shown:
    if found is None:
        return output.text(None)
    lines = [f'{found.requests_per_s} requests and {found.bytes_per_s} bytes '
             'per second, ' + (f'since {found.since}' if found.since
                               else 'not in force')]
    if found.problem:
        lines.append(found.problem)
    return output.Shown(found, '\n'.join(lines))


def _bill_fields(bill: server_report.Bill | None) -> list[tuple[str, ty.Any]]:
    if bill is None:
        return [(name, output.text(None)) for name in _BILL_FIELDS]
    return list(zip(_BILL_FIELDS, (
        output.Shown(bill, '\n'.join(
            f'{name}: {used:.2f} CU s, lately '
            f'{bill.used_lately_cu.get(name, 0):.2f} CU'
            for name, used in bill.used_cu_s.items())),
        output.Shown(
            bill.rolling_4h, '' if bill.rolling_4h is None else
            f'{bill.rolling_4h.cu:.2f}, of which '
            f'{bill.rolling_4h.covered_s / 3600:.1f} h were billed here'),
        _rounded(bill.limit_cu, 2), _rounded(bill.debt_cu_s, 2),
        _rounded(bill.written_off_cu_s, 2)), strict=True))


def _slices(slices: enforcement.Slices | None) -> output.Shown:
    if slices is None:
        return output.text(None)
    return output.Shown(slices, '\n'.join(
        f'vCPU {number}: {vcpu.kind}'
        + ('' if vcpu.recognised_after_s is None
           else f' (recognised after {vcpu.recognised_after_s:.0f} s)')
        + ', '
        + ("the kernel's own slice" if vcpu.slice_us is None
           else f'slice {vcpu.slice_us} us')
        + ('' if vcpu.mean_run_us is None
           else f', ran {vcpu.mean_run_us:.0f} us at a time')
        + ('' if vcpu.awake_us is None
           else f', works for {vcpu.awake_us:.0f} us from a sleep to the next')
        + (f', on pCPUs {vcpu.pcpus}' if vcpu.pcpus else '')
        for number, vcpu in slices.vcpus.items()))
