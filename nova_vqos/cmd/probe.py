# SPDX-License-Identifier: Apache-2.0
"""nova-vqos-probe: which slices and limits this kernel enforces."""

import dataclasses
import json
import os
import signal
import sys
import typing as ty

from oslo_config import cfg

from nova_vqos import version
from nova_vqos.calibration import benchmark
from nova_vqos.calibration.probe import probe
from nova_vqos.calibration.probe import vhost
from nova_vqos.cmd import arguments
from nova_vqos.conf import default_path
from nova_vqos.conf import vqos
from nova_vqos.hypervisor import base
from nova_vqos.hypervisor.linux import tracepoints
from nova_vqos.profile import kernel
from nova_vqos.quantum import probe_result

PROGRAM = 'nova-vqos-probe'
#: The exit status where no pCPU was idle enough.
NOT_MEASURED = 3

_COLUMNS = ('class', 'slice_us', 'mean_run_us', 'wait_us', 'work_us',
            'enforced', 'reason')
_OPTS = [
    cfg.StrOpt(
        'record', metavar='FILE',
        help='Write the result to this file, for the agent. Results of an '
             'earlier probe on this boot stay where this one could not '
             'measure, unless the kernel was set to schedule otherwise. The '
             'number of the tracepoint of KVM\'s exits is written beside it, '
             'to kvm_exit, for the source pause.'),
    cfg.StrOpt(
        'format', short='f', default='table', choices=['table', 'json'],
        help='Form of the output.'),
]


def main(argv: list[str] | None = None) -> int:
    """Run the program.

    :param argv: arguments, those of the process by default
    :returns: exit status
    """
    # An exception removes the groups on its way out.
    for number in signal.SIGTERM, signal.SIGHUP:
        signal.signal(number, _exit)
    try:
        return _probe(sys.argv[1:] if argv is None else argv)
    except (cfg.Error, benchmark.CalibrationError, base.HypervisorError,
            OSError) as error:
        print(f'{PROGRAM}: {error}', file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def _probe(argv: list[str]) -> int:
    conf = cfg.ConfigOpts()
    conf.register_cli_opts(_OPTS)
    vqos.register_opts(conf)
    conf(argv, project='nova-vqos', prog=PROGRAM, version=version.version(),
         description='Find out which quantum classes this kernel enforces, '
                     'with threads on an idle pCPU, for about eight seconds. '
                     'They use only idle time. The slices are those of '
                     '[vqos] quantum_slices. Then find out whether its CPU '
                     'limits hold workers of vhost.')
    if conf.record is not None:
        arguments.check_writable(conf.record, '--record')
    found = dataclasses.replace(probe.measure(vqos.slices_us(conf)),
                                vhost=vhost.measure())
    if conf.record is not None:
        found = probe_result.merged(found, probe_result.load(conf.record))
        probe_result.store(found, conf.record)
        tracepoints.record(
            tracepoints.KVM_EXIT, os.path.join(
                os.path.dirname(conf.record),
                os.path.basename(default_path.KVM_EXIT)),
            tracepoints.TRACING)
    _print(conf.format, found)
    return (NOT_MEASURED if any(outcome.enforced is None for outcome
                                in found.outcomes.values()) else 0)


def _print(form: str, result: probe_result.ProbeResult) -> None:
    rows = [{'class': name, **probe_result.document(outcome)}
            for name, outcome in result.outcomes.items()]
    if form == 'json':
        print(json.dumps([{column: row.get(column) for column in _COLUMNS}
                          for row in rows], indent=2))
        return
    table = [_COLUMNS, *(tuple(_text(row.get(column)) for column in _COLUMNS)
                         for row in rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for line in table:
        print('  '.join(map(str.ljust, line, widths)).rstrip())
    booted = kernel.preemption_at_boot(kernel.build_options())
    print(f'This kernel booted with preemption {booted}; now '
          f'{kernel.Scheduling(result.preemption, result.hrtick)}')
    if result.vhost is not None:
        print('CPU limits hold workers of vhost: '
              + ', '.join(filter(None, (_text(result.vhost.limited),
                                        result.vhost.reason))))


def _text(value: object) -> str:
    if isinstance(value, bool):
        return 'yes' if value else 'no'
    if isinstance(value, float):
        return f'{value:.0f}'
    return '-' if value is None else str(value)


def _exit(number: int, _frame: object) -> ty.NoReturn:
    # Once: a program that is ending must not be disturbed.
    for other in signal.SIGTERM, signal.SIGHUP:
        signal.signal(other, signal.SIG_IGN)
    raise SystemExit(128 + number)


if __name__ == '__main__':
    sys.exit(main())
