# SPDX-License-Identifier: Apache-2.0
"""Arguments of command lines, and their limits."""

import argparse
import os
import typing as ty

from nova_vqos.calibration.benchmark import CalibrationError
from nova_vqos.calibration.run import Effort
from nova_vqos.conf import default_path


def add_profile(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument('profile', nargs='?', default=default_path.PROFILE,
                        help=f'{what}, default: %(default)s')


def add_verification(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        '--verification', metavar='FILE', default=default_path.VERIFICATION,
        help='result of the last command verify, if there was one; a profile '
             'that was found to be stale is refused; default: %(default)s')


def add_max_seconds(parser: argparse.ArgumentParser, effort: Effort,
                    least: str) -> None:
    """:param least: what is measured at least"""
    parser.add_argument(
        '--max-seconds', type=seconds, metavar='SECONDS',
        default=effort.max_s,
        help=f'time for all measurements together; {least}, default: '
             '%(default)s')


def add_beside_guests(parser: ty.Any, who: str = 'guests',
                      consequence: str = 'both become slower') -> None:
    """:param parser: or a group of options"""
    parser.add_argument(
        '--beside-guests', action='store_true',
        help=f'measure even where {who} are at work on these pCPUs: '
             f'{consequence}')


def check_writable(path: str, option: str = '--output') -> None:
    """Check before measuring that the result can be written.

    :param option: that names the path
    :raises CalibrationError: when it cannot
    """
    if os.path.isdir(path):
        raise CalibrationError(f'{path} is a directory, not a file')
    directory = os.path.dirname(os.path.abspath(path))
    while not os.path.exists(directory):
        directory = os.path.dirname(directory)
    if not (os.path.isdir(directory) and os.access(directory, os.W_OK)):
        raise CalibrationError(
            f'{path} cannot be written: run as root, or give {option}')


def name(text: str) -> str:
    if not 0 < len(text) <= 256 or not text.isprintable():
        raise argparse.ArgumentTypeError(
            f'{text!r} is no text of 1 to 256 printable characters')
    return text


def count(text: str, least: int = 4, most: int = 1000) -> int:
    if not text.isdecimal() or not least <= int(text) <= most:
        raise argparse.ArgumentTypeError(
            f'{text!r} is no number from {least} to {most}')
    return int(text)


def seconds(text: str) -> float:
    return number(text, 86_400, 'seconds')


def share(text: str) -> float:
    return number(text, 1, 'a share such as 0.02')


def width(text: str) -> float:
    return number(text, 10, 'a width relative to the score, such as 0.05')


def number(text: str, most: float, meaning: str,
           least: float = 0.0) -> float:
    """:param least: 0: any above it"""
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 < number <= most or number < least:
        lowest = f'from {least:g}' if least else 'above 0 and'
        raise argparse.ArgumentTypeError(
            f'{text!r} is not {meaning}, {lowest} up to {most:g}')
    return number
