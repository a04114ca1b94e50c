#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0

"""Makes Grafana's dashboards below etc/grafana; run it after each change.

They are lists of panels and no more, so that a query can be read: all that
Grafana wants besides is the same for all.
"""

import json
import pathlib
import typing as ty

TARGET = pathlib.Path(__file__).parent.parent / 'etc' / 'grafana'

CU = 'suffix: CU'
CU_S = 'suffix: CU s'
SECONDS, SHARE, COUNT, BYTES = 's', 'percentunit', 'short', 'bytes'
HERTZ = 'hertz'
WHEN = 'dateTimeFromNow'

_ON_SERVER = 'on (instance, server_uuid)'
_OF_CLASS = (f'* {_ON_SERVER} group_left (quantum_class) '
             'nova_vqos_server_info')
_NAMED = f'* {_ON_SERVER} group_left (name) nova_vqos_server_info'


class Panel(ty.NamedTuple):
    """One picture.

    :ivar about: what it shows and what to look for
    :ivar queries: pairs of an expression and a legend
    :ivar kind: timeseries, stat or table
    :ivar stacked: whether its series add up to something
    :ivar width: of 24
    """

    title: str
    about: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    kind: str = 'timeseries'
    stacked: bool = False
    width: int = 12


def stat(title: str, query: str, about: str, unit: str = COUNT) -> Panel:
    return Panel(title, about, unit, ((query, ''),), 'stat', width=4)


def by_class(metric: str) -> str:
    return f'avg by (quantum_class) ({metric} {_OF_CLASS})'


CLOUD = (
    stat('Agents that answer', 'sum(nova_vqos_agent_up)',
         'Hosts whose agent looks after its servers'),
    stat('Agents that do not', 'count(up{job="nova-vqos"} == 0) or vector(0)',
         'Hosts that Prometheus knows, and whose agent it cannot reach'),
    stat('Hosts without a valid profile',
         'sum(1 - nova_vqos_host_profile_valid)',
         'No new servers with units go there'),
    stat('Servers with units', 'sum(nova_vqos_host_servers)',
         'All that were promised a speed'),
    stat('Wrong caps', 'sum(nova_vqos_host_servers_wrong)',
         'Servers that do not have the cap that they should'),
    stat('Alarms', 'sum(nova_vqos_agent_alarms)',
         'What agents want an operator to look at'),
    Panel('Promised against delivered',
          'What is for sale, what is sold of it, and what its servers use '
          'now: they need not use it', CU, (
              ('sum((nova_vqos_host_capacity_cpu_units - '
               'nova_vqos_host_reserved_cpu_units) * '
               'nova_vqos_host_allocation_ratio)', 'for sale'),
              ('sum(nova_vqos_server_entitled_cpu_units)', 'promised'),
              ('sum(rate(nova_vqos_server_vcpu_cpu_unit_seconds_total'
               '[$__rate_interval]))', 'delivered'))),
    Panel('Servers that get least of what was promised',
          'Of those that want to run nearly all the time: below 95 % is too '
          'little, see the alert NovaVqosServerShortOfUnits', SHARE, ((
              'bottomk(10, rate(nova_vqos_server_vcpu_cpu_unit_seconds_total'
              '[$__rate_interval]) / nova_vqos_server_entitled_cpu_units '
              'and (rate(nova_vqos_server_vcpu_seconds_total'
              '[$__rate_interval]) + rate('
              'nova_vqos_server_waited_seconds_total[$__rate_interval])) '
              f'/ nova_vqos_server_vcpus > 0.9) {_NAMED}',
              '{{name}} on {{instance}}'),)),
    Panel('I/O bill by component',
          'What hosts work for the I/O of billed servers', CU, ((
              'sum by (component) (rate('
              'nova_vqos_server_billed_cpu_unit_seconds_total'
              '{component!="vcpu"}[$__rate_interval]))', '{{component}}'),),
          stacked=True),
    Panel('How full hosts are',
          'Part of what is for sale that is sold', SHARE, ((
              'nova_vqos_host_used_cpu_units / '
              '((nova_vqos_host_capacity_cpu_units - '
              'nova_vqos_host_reserved_cpu_units) * '
              'nova_vqos_host_allocation_ratio)', '{{instance}}'),)),
    Panel('Promised beyond what is for sale',
          'Units of servers that their hosts do not have', CU, ((
              'clamp_min(nova_vqos_host_used_cpu_units - '
              'floor((nova_vqos_host_capacity_cpu_units - '
              'nova_vqos_host_reserved_cpu_units) * '
              'nova_vqos_host_allocation_ratio), 0)', '{{instance}}'),)),
    Panel('Servers on two hosts',
          'Those that migrate; any other one is to be audited', COUNT, ((
              'count(count by (server_uuid) '
              '(nova_vqos_server_entitled_cpu_units) > 1) or vector(0)',
              'servers'),)),
    Panel('Run lengths by class',
          'For how long vCPUs really run at a time, on average', SECONDS, (
              (by_class('nova_vqos_server_run_length_seconds'),
               '{{quantum_class}}'),)),
    Panel('Drift of hosts',
          'By how much hosts were off their profiles when that was last '
          'verified', SHARE, (
              ('nova_vqos_host_drift_ratio', '{{instance}} pCPUs {{pcpus}}'),
          )),
    Panel('Debts', 'What servers owe for their I/O, and what is written off',
          CU_S, (
              ('sum(nova_vqos_server_debt_cpu_unit_seconds)', 'owed'),
              ('sum(increase(nova_vqos_server_written_off_cpu_unit_seconds_'
               'total[1h]))', 'written off in an hour'))),
    Panel('Caps that another writer changed, in an hour',
          'The log of the agent says how; an alarm, which were not restored',
          COUNT, (
              ('increase(nova_vqos_agent_tamperings_total[1h])',
               '{{instance}}'),)),
)

_H = '{instance="$host"}'
HOST = (
    stat('Agent', f'nova_vqos_agent_up{_H}', '1: its loop answers'),
    stat('Hypervisor',
         f'nova_vqos_agent_hypervisor_connected{_H}', '1: it is reached'),
    stat('Profile', f'nova_vqos_host_profile_valid{_H}', '1: it is valid'),
    stat('Profile measured', 'nova_vqos_host_profile_measured_timestamp_'
         f'seconds{_H} * 1000', 'When', WHEN),
    stat('Ledger', f'nova_vqos_agent_ledger_stored{_H}', '1: it is written'),
    stat('Alarms', f'nova_vqos_agent_alarms{_H}', 'See host show'),
    Panel('Promised against delivered',
          'What the host has, what its servers were promised, and what they '
          'use now', CU, (
              (f'nova_vqos_host_capacity_cpu_units{_H}', 'capacity'),
              (f'nova_vqos_host_reserved_cpu_units{_H}', 'reserved'),
              (f'nova_vqos_host_used_cpu_units{_H}', 'promised'),
              ('sum(rate(nova_vqos_server_vcpu_cpu_unit_seconds_total'
               f'{_H}[$__rate_interval]))', 'delivered'))),
    Panel('Where the CPU time goes',
          'All that ran in the last minute. Unattributed is the work of the '
          'kernel without a known owner', CU, (
              (f'nova_vqos_host_load_cpu_units{_H}', '{{part}}'),),
          stacked=True),
    Panel('I/O bill by component',
          'What the host works for the I/O of billed servers', CU, ((
              'sum by (component) (rate('
              'nova_vqos_server_billed_cpu_unit_seconds_total'
              '{instance="$host",component!="vcpu"}[$__rate_interval]))',
              '{{component}}'),), stacked=True),
    Panel('What the host needs for itself',
          'Suggested by the last day; measured follows the load, and is '
          'reserved where [vqos] dd_reserve says so; unpaid is I/O of servers '
          'that are billed and not charged. Reserved is without what servers '
          'without units can use, and what others take beyond theirs', CU, (
              (f'nova_vqos_host_reserved_cpu_units{_H} - '
               f'nova_vqos_host_stock_cpu_units{_H} - '
               f'nova_vqos_host_work_cpu_units{_H}', 'reserved'),
              (f'nova_vqos_host_suggested_reserved_cpu_units{_H}',
               'suggested'),
              (f'nova_vqos_host_measured_reserve_cpu_units{_H}', 'measured'),
              (f'nova_vqos_host_unpaid_cpu_units{_H}', 'unpaid'))),
    Panel('Time for packets',
          'Part of their time that pCPUs spend on packets and timers; '
          'ksoftirqd has those that are too many to be done at once', SHARE, (
              (f'nova_vqos_host_softirq_ratio{_H}', 'busiest pCPU'),
              # Once a minute there is another value.
              (f'avg(rate(nova_vqos_host_softirq_seconds_total{_H}[5m]))',
               'mean of all pCPUs'),
              (f'max(rate(nova_vqos_host_ksoftirqd_seconds_total{_H}[5m]))',
               'busiest ksoftirqd'))),
    Panel('Packets without time',
          'A second: dropped since a backlog was full, and polls that ended '
          'before all were delivered', COUNT, (
              ('rate(nova_vqos_host_backlog_dropped_packets_total'
               f'{_H}[$__rate_interval])', 'dropped'),
              ('rate(nova_vqos_host_squeezed_polls_total'
               f'{_H}[$__rate_interval])', 'squeezed polls'),
              (f'nova_vqos_host_saturated_pcpus{_H}', 'saturated pCPUs'))),
    Panel('Servers that are sent alike',
          "Jain's index of what they receive: 1 is all the same, below 0.95 "
          'is too unlike, see the alert NovaVqosIoUneven. There is none where '
          'no two servers have the same units and like offers', SHARE, (
              (f'nova_vqos_host_io_jain{_H}', '{{direction}}'),)),
    Panel('Servers: delivered of promised',
          'The ten that use most', SHARE, ((
              'topk(10, rate(nova_vqos_server_vcpu_cpu_unit_seconds_total'
              f'{_H}[$__rate_interval]) / '
              f'nova_vqos_server_entitled_cpu_units{_H}) {_NAMED}',
              '{{name}}'),)),
    Panel('Run lengths by class',
          'For how long vCPUs really run at a time, and the slices that they '
          'are to have', SECONDS, (
              (by_class(f'nova_vqos_server_run_length_seconds{_H}'),
               '{{quantum_class}}'),
              (by_class(f'nova_vqos_server_slice_seconds{_H}'),
               'slice of {{quantum_class}}'))),
    Panel('Time to recognise work',
          'For how long the work of servers of class auto had been of its '
          'kind before that was recognised, the last time', SECONDS, tuple(
              (f'quantile({part}, nova_vqos_server_recognition_seconds{_H})',
               name) for part, name in (
                  (0.5, 'half of the servers'), (0.95, '95 % of them')))),
    Panel('Preemptions of servers that spin',
          'How often a second a vCPU lost its pCPU while another of its '
          'server ran: it may have held a lock that the other waits for. '
          'Where the agent has CAP_PERFMON', COUNT, (
              ('nova_vqos_server_sibling_preemptions_per_second'
               f'{_H} {_NAMED}', '{{name}}'),)),
    Panel('Pools', 'pCPUs that serve a class, and vCPUs that run there',
          COUNT, (
              (f'nova_vqos_host_pool_pcpus{_H}', 'pCPUs of {{quantum_class}}'),
              (f'nova_vqos_host_pool_vcpus{_H}',
               'vCPUs of {{quantum_class}}'))),
    Panel('Classes that are offered',
          '1: the kernel was seen to enforce it', COUNT, (
              (f'nova_vqos_host_class_offered{_H}', '{{quantum_class}}'),)),
    Panel('Speed and drift',
          'Coefficient of a pCPU, and by how much it was off when the '
          'profile was last verified', COUNT, (
              (f'nova_vqos_host_coefficient{_H}', '{{pcpu}}'),
              (f'nova_vqos_host_drift_ratio{_H}',
               'drift of pCPUs {{pcpus}}'))),
    Panel('Drift of kinds of work that memory bounds',
          'By how much their coefficients were off when the profile was last '
          'verified', SHARE, (
              (f'nova_vqos_host_kind_drift_ratio{_H}',
               '{{kind}}, pCPUs {{pcpus}}'),)),
    Panel('Servers that correct their units',
          'How many times as fast the host is for their own work as by the '
          'mean of all kinds: at 0.8 a server takes a quarter more of it',
          COUNT, ((f'nova_vqos_server_correction{_H} {_NAMED}',
                   '{{name}}'),)),
    Panel('Caps', 'In an hour', COUNT, (
        (f'increase(nova_vqos_agent_cap_writes_total{_H}[1h])', 'written'),
        (f'increase(nova_vqos_agent_tamperings_total{_H}[1h])',
         'changed by another writer'),
        (f'nova_vqos_host_servers_wrong{_H}', 'wrong now'))),
    Panel('What the agent uses', 'CPU time, and how long a look takes',
          SECONDS, (
              (f'rate(process_cpu_seconds_total{_H}[$__rate_interval])',
               'CPU seconds a second'),
              (f'nova_vqos_agent_last_tick_seconds{_H}', 'last look'))),
    Panel('Memory of the agent', '', BYTES, (
        (f'process_resident_memory_bytes{_H}', 'resident'),)),
)

_S = '{server_uuid="$server"}'
SERVER = (
    Panel('Server', 'Its names, and what its flavor asks for', COUNT,
          ((f'nova_vqos_server_info{_S}', ''),), 'table', width=24),
    stat('Cap', f'min(nova_vqos_server_cap_right{_S})', '1: it is right'),
    stat('Class', f'min(nova_vqos_server_class_right{_S})',
         '1: it is in force'),
    stat('Wrong before the last re-cap',
         f'max(nova_vqos_server_cap_wrong_seconds{_S})',
         'For how long it ran with another cap', SECONDS),
    stat('Coefficient', f'max(nova_vqos_server_coefficient{_S})',
         'Of the slowest pCPU that it may run on'),
    stat('Debt', f'sum(nova_vqos_server_debt_cpu_unit_seconds{_S})',
         'What it owes for its I/O', CU_S),
    stat('Overdrawn', f'max(nova_vqos_server_overdrawn{_S})',
         '1: its I/O is more than its units can pay for'),
    Panel('Promised against delivered',
          'What it was promised, what it is left of that while it pays for '
          "its I/O or shares its project's ceiling, what it may burst at, and "
          'what its vCPUs use',
          CU, (
              (f'max(nova_vqos_server_entitled_cpu_units{_S})', 'promised'),
              (f'min(nova_vqos_server_limit_cpu_units{_S})', 'limit'),
              (f'min(nova_vqos_server_ceiling_left_cpu_units{_S})',
               'left by the ceiling'),
              (f'max(nova_vqos_server_burst_left_cpu_units{_S})', 'in bursts'),
              ('sum(rate(nova_vqos_server_vcpu_cpu_unit_seconds_total'
               f'{_S}[$__rate_interval]))', 'delivered'),
              (f'sum(nova_vqos_server_rolling_4h_cpu_units{_S})',
               'mean of four hours, with its I/O'))),
    Panel('In seconds of its host',
          'Of each second and vCPU: what it ran, was held back by a limit, '
          'and was ready and did not run', SHARE, tuple(
              (f'sum(rate(nova_vqos_server_{name}_seconds_total{_S}'
               f'[$__rate_interval])) / max(nova_vqos_server_vcpus{_S})',
               legend) for name, legend in (
                   ('vcpu', 'ran'), ('throttled', 'throttled'),
                   ('waited', 'waited')))),
    Panel('Bill by component', 'What it is billed for', CU, ((
        'sum by (component) (rate('
        f'nova_vqos_server_billed_cpu_unit_seconds_total{_S}'
        '[$__rate_interval]))', '{{component}}'),), stacked=True),
    Panel('Debt', 'What it owes, and what was written off in an hour', CU_S, (
        (f'sum(nova_vqos_server_debt_cpu_unit_seconds{_S})', 'owed'),
        ('sum(increase(nova_vqos_server_written_off_cpu_unit_seconds_total'
         f'{_S}[1h]))', 'written off in an hour'))),
    Panel('Savings', 'Units that it saved for bursts; below 0: it overspent',
          CU_S, ((f'sum(nova_vqos_server_saved_cpu_unit_seconds{_S})',
                  'saved'),)),
    Panel('Memory of the emulator',
          "What of the host's memory it has beyond the guest's RAM: at least "
          'and at most', BYTES, (
              (f'nova_vqos_server_emulator_memory_bytes{_S}',
               '{{bound}}, {{instance}}'),)),
    Panel('Run length',
          'For how long it really runs at a time, the slice that it is to '
          'have, and how much of that can be had under its cap', SECONDS, (
              (f'max(nova_vqos_server_run_length_seconds{_S})',
               'run length'),
              (f'max(nova_vqos_server_slice_seconds{_S})', 'slice'),
              (f'max(nova_vqos_server_obtainable_slice_seconds{_S})',
               'obtainable'))),
    Panel('Host', 'Where it ran, and how fast a pCPU is there: for its work, '
          'and at the clock that it had', COUNT, (
              (f'nova_vqos_server_coefficient{_S}', '{{instance}}'),
              (f'nova_vqos_server_clock_coefficient{_S}',
               'at its clock, {{instance}}'))),
    Panel('Correction',
          'How many times as fast its host is for its own work as by the mean '
          'of all kinds: in force, and as measured and predicted', COUNT, (
              (f'nova_vqos_server_correction{_S}', 'in force, {{instance}}'),
              (f'nova_vqos_server_correction_predicted{_S}',
               '{{bound}}, {{instance}}'))),
    Panel('Instructions',
          'What its guest executes in a CPU second: a step without a move is '
          'other work', COUNT, (
              (f'nova_vqos_server_instructions_per_cpu_second{_S}',
               '{{instance}}'),)),
    Panel('Clock', 'Mean clock of the CPU while it ran', HERTZ, (
        (f'nova_vqos_server_clock_hertz{_S}', '{{instance}}'),)),
)


def variable(name: str, label: str, query: str) -> dict[str, ty.Any]:
    """One that is chosen from the values of a label."""
    return {
        'name': name, 'label': label, 'type': 'query', 'query': {
            'query': query, 'refId': name},
        'definition': query, 'datasource': _DATASOURCE, 'refresh': 2,
        'sort': 1, 'multi': False, 'includeAll': False, 'hide': 0,
        'current': {}, 'options': []}


_DATASOURCE = {'type': 'prometheus', 'uid': '${datasource}'}
_CHOOSE_DATASOURCE = {
    'name': 'datasource', 'label': 'Data source', 'type': 'datasource',
    'query': 'prometheus', 'refresh': 1, 'regex': '', 'multi': False,
    'includeAll': False, 'hide': 0, 'current': {}, 'options': []}
_CHOOSE_HOST = variable(
    'host', 'Host', 'label_values(nova_vqos_agent_up, instance)')
_CHOOSE_SERVER = variable(
    'server', 'Server', 'label_values(nova_vqos_server_info, server_uuid)')

DASHBOARDS: dict[str, tuple[str, tuple[Panel, ...],
                            tuple[dict[str, ty.Any], ...]]] = {
    'cloud': ('nova_vqos: cloud', CLOUD, ()),
    'host': ('nova_vqos: host', HOST, (_CHOOSE_HOST,)),
    'server': ('nova_vqos: server', SERVER, (_CHOOSE_SERVER,)),
}
_HEIGHTS = {'timeseries': 8, 'stat': 4, 'table': 5}


def main() -> None:
    for name in DASHBOARDS:
        (TARGET / f'nova-vqos-{name}.json').write_text(
            text(name), encoding='utf-8')


def text(name: str) -> str:
    """:returns: the content of a dashboard's file."""
    title, panels, variables = DASHBOARDS[name]
    return json.dumps({
        'uid': f'nova-vqos-{name}', 'title': title, 'tags': ['nova_vqos'],
        'schemaVersion': 38, 'version': 1, 'editable': True,
        'refresh': '30s', 'time': {'from': 'now-3h', 'to': 'now'},
        'timezone': 'browser', 'graphTooltip': 1,
        'annotations': {'list': []}, 'links': [{
            'type': 'dashboards', 'title': 'nova_vqos',
            'tags': ['nova_vqos'], 'asDropdown': True, 'includeVars': True,
            'keepTime': True}],
        'templating': {'list': [_CHOOSE_DATASOURCE, *variables]},
        'panels': laid_out(panels),
    }, indent=1) + '\n'


def laid_out(panels: tuple[Panel, ...]) -> list[dict[str, ty.Any]]:
    """From left to right, in rows of panels of the same height."""
    drawn = []
    x = y = height = 0
    for number, panel in enumerate(panels, 1):
        if x + panel.width > 24 or (x and height != _HEIGHTS[panel.kind]):
            x, y = 0, y + height
        height = _HEIGHTS[panel.kind]
        drawn.append({
            'id': number, 'type': panel.kind, 'title': panel.title,
            'description': panel.about, 'datasource': _DATASOURCE,
            'gridPos': {'x': x, 'y': y, 'w': panel.width, 'h': height},
            'targets': [{
                'refId': chr(ord('A') + at), 'datasource': _DATASOURCE,
                'expr': query, 'legendFormat': legend,
                'instant': panel.kind != 'timeseries',
                'range': panel.kind == 'timeseries',
                'format': 'table' if panel.kind == 'table' else 'time_series',
            } for at, (query, legend) in enumerate(panel.queries)],
            'fieldConfig': {'defaults': {
                'unit': panel.unit, 'custom': {
                    'fillOpacity': 30, 'stacking': {'mode': 'normal'},
                } if panel.stacked else {}}, 'overrides': []},
            'options': ({'reduceOptions': {'calcs': ['lastNotNull']}}
                        if panel.kind == 'stat' else {}),
        })
        x += panel.width
    return drawn


if __name__ == '__main__':
    main()
