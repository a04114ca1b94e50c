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
"""nova-vqos-probe: sees which quantum classes this kernel enforces."""

from collections.abc import Mapping
import json
import signal
import sys
import typing as ty

from oslo_config import cfg

from nova_vqos import version
from nova_vqos.calibration import benchmark
from nova_vqos.cmd import arguments
from nova_vqos.conf import vqos as vqos_options
from nova_vqos.hypervisor import base
from nova_vqos.quantum import probe
from nova_vqos.quantum import proof as proofs

PROGRAM = 'nova-vqos-probe'
#: The exit status where no pCPU was idle enough to tell.
NOT_MEASURED = 3

_COLUMNS = ('class', 'slice_us', 'mean_run_us', 'enforced', 'reason')
_OPTS = [
    cfg.StrOpt(
        'record', metavar='FILE',
        help='Leave what was seen in this file, for the agent. What an '
             'earlier probe saw on this boot, and this one could not measure, '
             'stays in it.'),
    cfg.StrOpt(
        'format', short='f', default='table', choices=['table', 'json'],
        help='How it is printed.'),
]


def main(argv: list[str] | None = None) -> int:
    """Run the program.

    :param argv: arguments, those of the process by default
    :returns: exit status
    """
    # What was made is removed on the way out of an exception.
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
    vqos_options.register_opts(conf)
    conf(argv, project='nova-vqos', prog=PROGRAM, version=version.version(),
         description='See which quantum classes this kernel enforces, with '
                     'two threads on a pCPU that nobody uses, for about a '
                     'second. They take no time that anybody else wants. The '
                     'slices are those of [vqos] quantum_slices.')
    if conf.record is not None:
        arguments.check_writable(conf.record, '--record')
    found = probe.measure(vqos_options.slices_us(conf))
    if conf.record is not None:
        found = proofs.kept(found, proofs.load(conf.record))
        proofs.store(found, conf.record)
    _tell(conf.format, found.outcomes)
    return (NOT_MEASURED if any(outcome.enforced is None for outcome
                                in found.outcomes.values()) else 0)


def _tell(form: str, outcomes: Mapping[str, proofs.Outcome]) -> None:
    rows = [{'class': name, **proofs.document(outcome)}
            for name, outcome in outcomes.items()]
    if form == 'json':
        print(json.dumps([{column: row.get(column) for column in _COLUMNS}
                          for row in rows], indent=2))
        return
    table = [_COLUMNS, *(tuple(_text(row.get(column)) for column in _COLUMNS)
                         for row in rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for line in table:
        print('  '.join(map(str.ljust, line, widths)).rstrip())


def _text(value: object) -> str:
    if isinstance(value, bool):
        return 'yes' if value else 'no'
    if isinstance(value, float):
        return f'{value:.0f}'
    return '-' if value is None else str(value)


def _exit(number: int, _frame: object) -> ty.NoReturn:
    # Once: what is on its way out is not to be disturbed.
    for other in signal.SIGTERM, signal.SIGHUP:
        signal.signal(other, signal.SIG_IGN)
    raise SystemExit(128 + number)


if __name__ == '__main__':
    sys.exit(main())
