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

"""What I/O costs a host's kernel, as people read it."""

from collections.abc import Iterator

from nova_vqos import io_profile

COLUMNS = ('kind', 'direction', 'request_ns', 'low', 'high', 'byte_ns',
           'byte_low', 'byte_high', 'residual_ns', 'backend_ns',
           'unaccounted_ns', 'samples')


def rows(shown: io_profile.IoProfile) -> Iterator[tuple[object, ...]]:
    """What was measured of each kind of request, with :data:`COLUMNS`."""
    for interface in shown.interfaces:
        for direction in ('rx', 'tx'):
            yield _row(interface.mode, direction,
                       getattr(interface, direction))
    for disk in shown.disks:
        kind = f'{disk.source}, {"buffered" if disk.buffered else "direct"}'
        for direction in ('read', 'write'):
            yield _row(kind, direction, getattr(disk, direction))


def _row(kind: str, direction: str,
         found: io_profile.Measured) -> tuple[object, ...]:
    unaccounted = found.unaccounted
    half = (unaccounted.high - unaccounted.low) / 2
    smallest = min(found.backends)
    return (kind, direction,
            *(round(number) for number in (
                found.request.value, found.request.low, found.request.high)),
            *(round(number, 4) for number in (
                found.byte.value, found.byte.low, found.byte.high)),
            round(max(map(abs, found.residuals.values()))),
            f'{found.backends[smallest]:.0f} at {smallest}',
            f'{unaccounted.value:+.0f} \N{PLUS-MINUS SIGN}{half:.0f}',
            found.samples)
