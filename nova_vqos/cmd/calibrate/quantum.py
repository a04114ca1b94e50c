# SPDX-License-Identifier: Apache-2.0
"""nova-vqos-calibrate quantum: find the best slice for each kind of work."""

import argparse

from nova_vqos import cpuset
from nova_vqos.calibration import host_cpus
from nova_vqos.calibration import run
from nova_vqos.calibration.benchmark import CalibrationError
from nova_vqos.calibration.quantum import measure
from nova_vqos.calibration.quantum import rounds
from nova_vqos.cmd import arguments
from nova_vqos.cmd.calibrate import part
from nova_vqos.cmd.calibrate import profiles
from nova_vqos.profile import model
from nova_vqos.profile import quantum
from nova_vqos.quantum import classes


class CalibrateQuantum(part.MeasurePart):
    """Measure which slice suits which kind of work.

    Real work of each kind shares a pCPU with 1 and 3 others, at several
    slices and at the kernel's default. It runs in a cgroup that is idle as a
    whole, on pCPUs that nothing else uses. The command adds the result to the
    profile. It ends within 5 minutes by default, and needs root, Linux 6.12
    and sysbench.
    """

    field = 'quantum'
    to_document = staticmethod(quantum.document)
    describe = staticmethod(profiles.describe_quantum)

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        super().add_options(parser)
        parser.add_argument(
            '--kind', choices=tuple(quantum.CLASSES),
            action='append', default=[],
            help='kind of work to measure; may be repeated; default: all. '
                 'Earlier results of other kinds are removed from the '
                 'profile')
        parser.add_argument(
            '--slice', metavar='MS', type=slice_ms, action='append',
            default=[],
            help='slice to measure in ms, beside the default of the kernel; '
                 'may be repeated; default: '
                 + ', '.join(map(str, measure.SLICES_MS)))
        parser.add_argument(
            '--rounds', type=max_rounds, default=measure.EFFORT.max_rounds,
            help='maximum number of rounds of everything; at least '
                 f'{rounds.LEAST_ROUNDS}, default: %(default)s')
        arguments.add_max_seconds(
            parser, measure.EFFORT, 'refused where it is too little for '
            f'{rounds.LEAST_ROUNDS} rounds')
        parser.add_argument(
            '--pcpus', metavar='LIST',
            help='pCPUs to choose an idle one from, two for spin, such as '
                 '2-31; default: those of the profile')
        arguments.add_beside_guests(
            parser, 'guests or others', 'the measurement uses the time that '
            'they leave')

    def calibrate(self, held: model.Profile, parsed_args: argparse.Namespace,
                ) -> run.Result[quantum.QuantumProfile]:
        return measure.calibrate(
            _pcpus(held, parsed_args.pcpus),
            tuple(dict.fromkeys(parsed_args.kind)) or tuple(quantum.CLASSES),
            sorted(set(parsed_args.slice))
            or [1000 * ms for ms in measure.SLICES_MS],
            run.Effort(parsed_args.rounds, parsed_args.max_seconds),
            beside_guests=parsed_args.beside_guests)


def slice_ms(text: str) -> int:
    """:returns: in microseconds"""
    expected = (f'a slice from {classes.MIN_SLICE_US / 1000:g} to '
                f'{classes.MAX_SLICE_US / 1000:g} ms')
    found = round(1000 * arguments.number(
        text, classes.MAX_SLICE_US / 1000, expected))
    if found < classes.MIN_SLICE_US:
        raise argparse.ArgumentTypeError(f'{text!r} is not {expected}')
    return found


def max_rounds(text: str) -> int:
    return arguments.count(text, rounds.LEAST_ROUNDS, quantum.MAX_ROUNDS)


def _pcpus(held: model.Profile, text: str | None) -> frozenset[int]:
    """
    :raises CalibrationError: when there are none, or not in the profile
    """
    chosen = host_cpus.choose(text)
    if text is None:
        chosen &= held.pcpus
    if not chosen or not chosen <= held.pcpus:
        raise CalibrationError(
            f'--pcpus {cpuset.format_pcpus(chosen) or "none"}: the profile '
            f'has {cpuset.format_pcpus(held.pcpus)}, slices are measured on '
            'pCPUs of servers')
    return chosen
