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

"""nova-vqos-calibrate io: measure what I/O costs this host's kernel."""

import argparse
import math
import os
import typing as ty

from cliff import lister

from nova_vqos import fingerprint
from nova_vqos import io_profile
from nova_vqos import profile
from nova_vqos.calibration import host_cpus
from nova_vqos.calibration.benchmark import CalibrationError
from nova_vqos.calibration.io import measure
from nova_vqos.calibration.io import traffic
from nova_vqos.cmd import arguments
from nova_vqos.cmd import profiles

_LOAD_CHECK_S = 1


class CalibrateIo(lister.Lister):
    """Measure what servers' I/O costs this host's kernel, into its profile.

    Measured is what no thread of a server is charged for: packets on their
    way to a tap, interrupts, and writing back what was buffered. Packets go
    through network namespaces that are gone afterwards; nothing gets to this
    host's own network. Ends within 5 minutes by default. Needs root.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        arguments.add_profile(
            parser, 'the file, written by the command cpu on this host')
        parser.add_argument(
            '--mode', choices=traffic.MODES, action='append', default=[],
            help='how packets get to interfaces of servers; again for '
                 f'others; default: {", ".join(traffic.MODES)}')
        parser.add_argument(
            '--disk-directory', metavar='DIRECTORY',
            help="where servers' disks are, for a file without a name; "
                 f'default: {measure.DISK_DIRECTORY} where that is')
        parser.add_argument(
            '--block-device', metavar='PATH',
            help='a spare block device, which is overwritten: it must be in '
                 'no use, and begin and end with zeros; default: none is '
                 'measured')
        parser.add_argument(
            '--sweeps', type=arguments.rounds,
            default=measure.Effort().max_sweeps,
            help='at most so many samples of each size of each kind of '
                 'request; at least 4, default: %(default)s')
        parser.add_argument(
            '--max-seconds', type=arguments.seconds, metavar='SECONDS',
            default=measure.Effort().max_s,
            help='time for all of it; each kind of request has 4 samples, '
                 'however long they take, default: %(default)s')
        parser.add_argument(
            '--pcpus', metavar='LIST',
            help='the two pCPUs to measure with, such as 2,3; default: the '
                 'first two of the profile')
        parser.add_argument(
            '--beside-guests', action='store_true',
            help='measure even where guests are at work on these pCPUs, '
                 'which makes both slower')
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> ty.Any:
        path = parsed_args.profile
        held = profile.load(path)
        arguments.check_writable(path, 'another PROFILE')
        check_fresh(held)
        pcpus = measure.choose_pcpus(held, parsed_args.pcpus)
        directory = disk_directory(parsed_args.disk_directory)
        load = host_cpus.load(pcpus, _LOAD_CHECK_S)
        if not parsed_args.beside_guests:
            load.refuse_guests(pcpus)
        setting = measure.Setting(
            pcpus=pcpus, modes=parsed_args.mode or traffic.MODES,
            disk_directory=directory, block_device=parsed_args.block_device,
            busy_before=load.busy, interrupts_apart=held.fingerprint.get(
                'irq_time_accounting') == 'y')
        if held.fingerprint.get('irq_time_accounting') not in ('y', 'n'):
            self.app.LOG.warning(
                'Warning: it cannot be told whether this kernel has '
                'CONFIG_IRQ_TIME_ACCOUNTING: with it, packets are found to '
                'be cheaper than they are')
        result = measure.calibrate(setting, measure.Effort(
            parsed_args.sweeps, parsed_args.max_seconds))
        if profile.load(path).id != held.id:
            raise CalibrationError(
                f'{path} was written by somebody else meanwhile: measure '
                'again')
        written = held._replace(io=io_profile.document(result.io))
        profile.store(written, path)
        self.app.LOG.info('Wrote profile %s to %s', written.id, path)
        for warning in result.warnings:
            self.app.LOG.warning('Warning: %s', warning)
        return profiles.tell_io(self.app.LOG, result.io)


def check_fresh(held: profile.Profile) -> None:
    """
    :raises CalibrationError: when the profile is not of this host as it is
    """
    # Intervals are no part of it: they are of speed.
    reasons = profile.staleness(
        held, fingerprint.of_host(held.fingerprint.get('emulator')),
        max_interval=math.inf)
    if reasons:
        raise CalibrationError(
            'the profile is not of this host as it is now, measure it with '
            f'the command cpu first: {"; ".join(reasons)}')


def disk_directory(wanted: str | None) -> str | None:
    """
    :param wanted: None: Nova's, where that is
    :raises CalibrationError: when it is no directory
    """
    if wanted is None:
        return (measure.DISK_DIRECTORY
                if os.path.isdir(measure.DISK_DIRECTORY) else None)
    if not os.path.isdir(wanted):
        raise CalibrationError(f'--disk-directory {wanted} is no directory')
    return wanted
