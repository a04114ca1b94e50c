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

"""Arguments of nova-vqos-calibrate's commands, and their limits."""

import argparse
import os

from nova_vqos import profile
from nova_vqos.calibration.benchmark import CalibrationError


def add_profile(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument('profile', nargs='?', default=profile.DEFAULT_PATH,
                        help=f'{what}, default: %(default)s')


def check_writable(path: str, option: str = '--output') -> None:
    """See before measuring that the result can be written.

    :param option: that says where to
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


def rounds(text: str) -> int:
    if not text.isdecimal() or not 4 <= int(text) <= 1000:
        raise argparse.ArgumentTypeError(
            f'{text!r} is no number of rounds from 4 to 1000')
    return int(text)


def seconds(text: str) -> float:
    return number(text, 86_400, 'seconds')


def share(text: str) -> float:
    return number(text, 1, 'a share such as 0.02')


def number(text: str, most: float, meaning: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 < number <= most:
        raise argparse.ArgumentTypeError(
            f'{text!r} is not {meaning}, above 0 and up to {most:g}')
    return number
