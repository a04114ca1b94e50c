# SPDX-License-Identifier: Apache-2.0
"""Firmware for guests without operating system."""

import io

from oslo_utils.imageutils import format_inspector
import pytest

from nova_vqos_lab import rom


def step(image, at):
    """A processor that knows what the firmware uses.

    :param at: of an instruction in the image
    :returns: its name, its operands, and where the next one is
    """
    lengths = {0xfa: 1, 0xfb: 1, 0x50: 1, 0x58: 1, 0xcf: 1, 0x31: 2, 0x8e: 2,
               0xb0: 2, 0xe6: 2, 0xeb: 2, 0x66: 5, 0xc7: 6}
    code = image[at:at + lengths[image[at]]]
    end = at + len(code)
    if code[0] == 0xeb:
        jump = code[1] - 256 * (code[1] > 127)
        return 'jump', end + jump, end + jump
    if code[0] == 0x66:
        assert code[1:3] == b'\xff\x06'
        return 'count', int.from_bytes(code[3:], 'little'), end
    if code[0] == 0xc7:
        assert code[1] == 0x06
        return 'store', (int.from_bytes(code[2:4], 'little'),
                         int.from_bytes(code[4:], 'little')), end
    if code[0] in (0xb0, 0xe6):
        return {0xb0: 'load', 0xe6: 'out'}[code[0]], code[1], end
    return code, None, end


def run(image, steps):
    """:returns: (name, operands) of the first instructions from RESET on"""
    at, done = rom.RESET, []
    for _ in range(steps):
        name, operands, at = step(image, at)
        done.append((name, operands))
    return done


@pytest.mark.parametrize('image', [rom.first(rom.COUNT), rom.tick()],
                         ids=['COUNT', 'tick'])
def test_it_counts_for_good(image):
    assert len(image) == rom.SIZE_BYTES
    last = run(image, 60)[-4:]
    counts = [one for one in last if one[0] == 'count']
    assert counts == [('count', rom.COUNTER)] * 2
    assert {name for name, _ in last} == {'count', 'jump'}


def test_a_disk_boots_and_has_a_text():
    sector = rom.boot_sector()
    assert len(sector) == 512
    assert sector.endswith(b'\x55\xaa')
    name, _, begin = step(sector, 0)
    assert (name, sector[begin]) == ('jump', 0xfa)
    # What si is set to, where firmware puts the sector.
    at = int.from_bytes(sector[sector.index(0xbe, begin) + 1:][:2],
                        'little') - 0x7c00
    assert sector[at:].startswith(rom.PRINTED + b'\0')
    name, _, end = step(sector, at - 2)
    assert (name, end) == ('jump', at - 2)


def test_glance_takes_the_disk_as_it_is():
    content = io.BytesIO(rom.boot_sector().ljust(2**20, b'\0'))
    seen = format_inspector.InspectWrapper(content)
    while seen.read(4096):
        pass
    seen.close()
    assert [str(one) for one in seen.formats] == ['raw']


def test_nothing_can_interrupt_it():
    done = run(rom.first(rom.COUNT), 20)
    assert done[:3] == [(b'\xfa', None), (b'\x31\xc0', None),
                        (b'\x8e\xd8', None)]
    assert (b'\xfb', None) not in done


def test_its_clock_interrupts_it():
    image = rom.tick()
    done = run(image, 60)
    vector = dict(operands for name, operands in done if name == 'store')
    assert vector[0x22] == 0xf000
    handler, _, at = step(image, vector[0x20])
    assert handler == b'\x50'
    for expected in ('load', 'out', b'\x58', b'\xcf'):
        name, _, at = step(image, at)
        assert name == expected
    ports = [(done[at + 1][1], operands) for at, (name, operands)
             in enumerate(done[:-1]) if name == 'load']
    low, high = (value for port, value in ports if port == 0x40)
    assert 1193182 / (low + 256 * high) == pytest.approx(rom.TICK_HZ, rel=1e-3)
    assert [value for port, value in ports if port == 0x21] == [
        8, 4, 1, 0xfe]
    # Only then is it let in.
    assert done.index((b'\xfb', None)) > max(
        at for at, (name, _) in enumerate(done) if name == 'out')
