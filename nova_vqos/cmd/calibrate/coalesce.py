# SPDX-License-Identifier: Apache-2.0
"""nova-vqos-calibrate coalesce: packets that may wait for each other."""

import argparse
import functools
import types
import typing as ty

from cliff import lister

from nova_vqos.billing import costs
from nova_vqos.calibration.benchmark import CalibrationError
from nova_vqos.calibration.io import traffic
from nova_vqos.cmd import arguments
from nova_vqos.cmd import options
from nova_vqos.conf import default_path
from nova_vqos.profile import document

_MOST_US = 1e6
_COLUMNS = ('packets', 'fill_us', 'wait_us', 'transfer_us', 'delay_us', 'load',
            'us_per_packet')


class CoalescePackets(options.OptionsCommand, lister.Lister):
    """Find how many packets may be coalesced for a budget of delay.

    A driver that coalesces packets moves many at once: so many, or fewer when
    a timer ends that the first one started. It takes less CPU time, and the
    packets wait for each other. This computes both; it measures and sets
    nothing. Packets arrive at random, and all streams share one thread. The
    command needs numpy.
    """

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            'rates', nargs='+', metavar='RATE', type=_rate,
            help='packets per second of each stream, up to 7')
        parser.add_argument(
            '--delay-us', required=True, type=_us, metavar='US',
            help='budget: mean delay of a packet')
        parser.add_argument(
            '--batch-us', required=True, type=_us, metavar='US',
            help='CPU time of moving packets at once, however many: of an '
                 'interrupt, or of waking a thread')
        packet = parser.add_mutually_exclusive_group()
        packet.add_argument(
            '--packet-us', type=_us, metavar='US',
            help='CPU time of each packet, instead of what a profile has')
        packet.add_argument(
            '--profile', metavar='FILE', default=default_path.PROFILE,
            help='profile whose costs of I/O count: of the kernel and of the '
                 'thread that reads the tap; default: %(default)s')
        parser.add_argument(
            '--mode', choices=traffic.MODES, default=traffic.MODES[0],
            help='way of the packets in the profile, default: %(default)s')
        parser.add_argument(
            '--bytes', type=functools.partial(
                arguments.count, least=traffic.LEAST_BYTES,
                most=traffic.MOST_BYTES),
            default=traffic.LEAST_BYTES, metavar='BYTES',
            help='size of a packet in the profile, default: %(default)s')

    def take_action(self, parsed_args: argparse.Namespace) -> ty.Any:
        model = load_model()
        rates, budget_us = parsed_args.rates, parsed_args.delay_us
        transfer = model.Transfer(
            parsed_args.batch_us / 1e6, _packet_us(parsed_args) / 1e6)
        try:
            largest = model.largest_size(budget_us / 1e6, rates, transfer)
        except ValueError as error:
            raise CalibrationError(str(error)) from error
        if largest is None:
            raise CalibrationError(
                f'no number of packets has a mean delay of {budget_us:g} us '
                'or less: few are too much work, or many come too slowly')
        timer_us = budget_us - 1e6 * (
            transfer.container_s + largest * transfer.packet_s)
        self.app.LOG.info(
            'Coalesce up to %d packets. For times with fewer packets, set the '
            'timer to %d us.', largest, timer_us)
        sizes = sorted({*(1 << step for step in range(
            largest.bit_length())), largest})
        return _COLUMNS, [_row(model, size, rates, transfer)
                          for size in sizes]


def load_model() -> types.ModuleType:
    """Import the model; numpy is optional.

    :raises CalibrationError: when numpy is missing
    """
    try:
        from nova_vqos.calibration.io import aggregation
    except ImportError as error:
        raise CalibrationError(
            f'numpy cannot be imported ({error}): install the package '
            'python3-numpy, or nova_vqos[coalesce] by pip') from error
    return aggregation


def _row(model: types.ModuleType, size: int, rates: list[float],
         transfer: ty.Any) -> tuple[ty.Any, ...]:
    found = model.delay(size, rates, transfer)
    return (size, *(None if us == float('inf') else round(us, 1)
                    for us in (1e6 * part for part in (
                        *found, found.total_s))),
            round(sum(rates) / size * found.transfer_s, 3),
            round(1e6 * found.transfer_s / size, 3))


def _packet_us(given: argparse.Namespace) -> float:
    """:raises CalibrationError: when the profile does not have it"""
    if given.packet_us is not None:
        return float(given.packet_us)
    held = document.load(given.profile).io_profile
    measured = next((one.rx for one in held.interfaces
                     if one.mode == given.mode), None) if held else None
    if measured is None:
        raise CalibrationError(
            f'{given.profile} has no cost of packets of mode {given.mode}: '
            'run nova-vqos-calibrate io, or give --packet-us')
    reading = costs.RequestCost(tuple(measured.backends.items()))
    return float(measured.cost.total_ns(1, given.bytes)
                 + reading.total_ns(1, given.bytes)) / 1e3


def _rate(text: str) -> float:
    return arguments.number(text, 1e9, 'packets per second')


def _us(text: str) -> float:
    return arguments.number(text, _MOST_US, 'microseconds')
