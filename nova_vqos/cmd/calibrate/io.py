# SPDX-License-Identifier: Apache-2.0
"""nova-vqos-calibrate io: measure the cost of I/O for this host's kernel."""

import argparse
import os

from nova_vqos.calibration import host_cpus
from nova_vqos.calibration import run
from nova_vqos.calibration.benchmark import CalibrationError
from nova_vqos.calibration.io import measure
from nova_vqos.calibration.io import traffic
from nova_vqos.cmd import arguments
from nova_vqos.cmd.calibrate import part
from nova_vqos.cmd.calibrate import profiles
from nova_vqos.profile import io
from nova_vqos.profile import model

_LOAD_CHECK_S = 1


class CalibrateIo(part.MeasurePart):
    """Measure the cost of servers' I/O for this host's kernel.

    The command adds to the profile the costs that no thread of a server is
    charged for: packets on their way to a tap, interrupts, and writing back
    what was buffered. Packets go through network namespaces that are removed
    afterwards; none reaches this host's own network. It ends within 5 minutes
    by default, and needs root.
    """

    field = 'io'
    to_document = staticmethod(io.document)
    describe = staticmethod(profiles.describe_io)

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        super().add_options(parser)
        parser.add_argument(
            '--mode', choices=traffic.MODES, action='append', default=[],
            help='how packets get to interfaces of servers; may be repeated; '
                 f'default: {", ".join(traffic.MODES)}')
        parser.add_argument(
            '--disk-directory', metavar='DIRECTORY',
            help="directory of servers' disks, for a file without a name; "
                 f'default: {measure.DISK_DIRECTORY} if it exists')
        parser.add_argument(
            '--block-device', metavar='PATH',
            help='spare block device, which is overwritten: it must not be '
                 'in use, and begin and end with zeros; default: none is '
                 'measured')
        parser.add_argument(
            '--sweeps', type=arguments.count,
            default=measure.EFFORT.max_rounds,
            help='maximum number of samples of each size of each kind of '
                 'request; at least 4, default: %(default)s')
        arguments.add_max_seconds(
            parser, measure.EFFORT,
            'each kind of request has 4 samples, however long they take')
        parser.add_argument(
            '--pcpus', metavar='LIST',
            help='the two pCPUs to measure with, such as 2,3; default: the '
                 'first two of the profile')
        arguments.add_beside_guests(parser)

    def calibrate(self, held: model.Profile, parsed_args: argparse.Namespace,
                ) -> run.Result[io.IoProfile]:
        pcpus = measure.choose_pcpus(held, parsed_args.pcpus)
        directory = disk_directory(parsed_args.disk_directory)
        load = host_cpus.load(pcpus, _LOAD_CHECK_S)
        if not parsed_args.beside_guests:
            load.refuse_guests(pcpus)
        accounting = held.fingerprint.get('irq_time_accounting')
        if accounting not in ('y', 'n'):
            self.app.LOG.warning(
                'Warning: it is unknown whether this kernel has '
                'CONFIG_IRQ_TIME_ACCOUNTING: with it, packets seem cheaper '
                'than they are')
        return measure.calibrate(
            measure.Setting(
                pcpus=pcpus, modes=parsed_args.mode or traffic.MODES,
                disk_directory=directory,
                block_device=parsed_args.block_device,
                busy_before=load.busy, interrupts_apart=accounting == 'y'),
            run.Effort(parsed_args.sweeps, parsed_args.max_seconds))


def disk_directory(wanted: str | None) -> str | None:
    """
    :param wanted: None: Nova's, if it exists
    :raises CalibrationError: when it is no directory
    """
    if wanted is None:
        return (measure.DISK_DIRECTORY
                if os.path.isdir(measure.DISK_DIRECTORY) else None)
    if not os.path.isdir(wanted):
        raise CalibrationError(f'--disk-directory {wanted} is no directory')
    return wanted
