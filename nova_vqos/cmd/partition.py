# SPDX-License-Identifier: Apache-2.0
"""nova-vqos-partition: pCPUs that servers have to themselves."""

import json
import sys

from oslo_config import cfg

from nova_vqos import cpuset
from nova_vqos import version
from nova_vqos.calibration import benchmark
from nova_vqos.cmd import arguments
from nova_vqos.conf import default_path
from nova_vqos.conf import vqos
from nova_vqos.hypervisor import base
from nova_vqos.hypervisor.linux import partition as partitions

PROGRAM = 'nova-vqos-partition'

_OPTS = [
    cfg.BoolOpt(
        'release', default=False,
        help='Give the pCPUs back to the rest of the host.'),
    cfg.BoolOpt(
        'rebuild', default=False,
        help='Make the partition anew: the kernel then finds the time again '
             'that it lost. Servers keep their reservations.'),
    cfg.StrOpt(
        'record', metavar='FILE', default=default_path.PARTITION,
        help='Where the agent finds what was measured.'),
    cfg.StrOpt(
        'format', short='f', default='table', choices=['table', 'json'],
        help='Form of the output.'),
]


def main(argv: list[str] | None = None) -> int:
    """Run the program.

    :param argv: arguments, those of the process by default
    :returns: exit status
    """
    try:
        return _run(sys.argv[1:] if argv is None else argv)
    except (cfg.Error, benchmark.CalibrationError, base.HypervisorError,
            OSError) as error:
        print(f'{PROGRAM}: {error}', file=sys.stderr)
        return 1


def _run(argv: list[str]) -> int:
    conf = cfg.ConfigOpts()
    conf.register_cli_opts(_OPTS)
    vqos.register_opts(conf)
    conf(argv, project='nova-vqos', prog=PROGRAM, version=version.version(),
         description='Make the pCPUs of [vqos] guaranteed_pcpus a cpuset '
                     'partition of all servers, unless they are, and measure '
                     'how much of their time the kernel reserves. Needs root '
                     'and cgroups of version 2. To be run again and again: it '
                     'repairs what others changed.')
    pcpus: frozenset[int] = conf.vqos.guaranteed_pcpus
    if not pcpus:
        print(f'{PROGRAM}: [vqos] guaranteed_pcpus is not set: there is '
              'nothing to do', file=sys.stderr)
        return 0
    partition = partitions.Partition(pcpus, conf.record)
    if conf.release:
        partition.release()
        return 0
    arguments.check_writable(conf.record, '--record')
    is_new = partition.make(rebuild=conf.rebuild)
    found = partition.measure()
    partition.store(found)
    _print(conf.format, {
        'path': partition.path, 'pcpus': cpuset.format_pcpus(pcpus),
        'made_now': is_new, 'total_pcpus': float(found.total_pcpus),
        'reserved_pcpus': float(found.reserved_pcpus),
        'free_pcpus': float(found.free_pcpus)})
    return 0


def _print(form: str, found: dict[str, object]) -> None:
    if form == 'json':
        print(json.dumps(found, indent=2))
        return
    width = max(map(len, found))
    for name, value in found.items():
        text = f'{value:.3f}' if isinstance(value, float) else value
        print(f'{name:<{width}}  {text}')


if __name__ == '__main__':
    sys.exit(main())
