# SPDX-License-Identifier: Apache-2.0
import os
import re
import stat

from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import pytest

from nova_vqos.calibration import guest
from nova_vqos.calibration.guest import initramfs
from nova_vqos.calibration.guest import programs


@pytest.mark.parametrize(('line', 'expected'), [
    ('vqos-start sysbench 3.49', guest.RoundStart('sysbench', 3.49)),
    ('vqos-stop sysbench 3.89\r\n', guest.RoundStop('sysbench', 3.89)),
    ('vqos sysbench 3.90 200 0.4033\r\n',
     guest.Round('sysbench', 3.90, 200, 0.4033)),
    ('vqos sha512 4.40 32 0.431116', guest.Round('sha512', 4.4, 32, 0.431116)),
    ('vqos sysbench 3.90 200', None),
    ('vqos sysbench 3.90 200 0.40 [ 4.1] random: crng init', None),
    ('noise vqos sysbench 3.90 200 0.4', None),
    ('vqos-done', None),
    ('', None)])
def test_lines_of_the_console(line, expected):
    assert guest.parse_line(line) == expected


@settings(deadline=None)
@given(st.text(max_size=60))
def test_no_line_breaks_the_reader(text):
    guest.parse_line(text)
    guest.parse_line(f'vqos {text}')


def write_kernel(path, release, magic=b'HdrS', at=0x3000):
    """The parts of x86's kernels with their release."""
    image = bytearray(at + 0x200)
    image[0x202:0x206] = magic
    image[0x20e:0x210] = at.to_bytes(2, 'little')
    path.write_bytes(bytes(image) + release)
    return str(path)


@pytest.mark.parametrize(('release', 'expected'), [
    (b'6.1.0-40-cloud-amd64 (debian-kernel@lists.debian.org) #1 SMP\0',
     '6.1.0-40-cloud-amd64'),
    (b'7.2.1+deb14~rc1_x\0', '7.2.1+deb14~rc1_x'),
    (b'7' * 300, '7' * 64), (b'', 'unknown'), (b'\0', 'unknown'),
    (b'\xff\xfe', 'unknown')])
def test_the_release_of_a_kernel(tmp_path, release, expected):
    kernel = write_kernel(tmp_path / 'vmlinuz', release)
    assert guest.kernel_release(kernel) == expected


def test_a_file_that_is_no_kernel_of_x86(tmp_path):
    path = tmp_path / 'vmlinuz'
    assert guest.kernel_release(str(path)) == 'unknown'
    for content in (b'', b'MZ', b'\x1f\x8b' * 5000):
        path.write_bytes(content)
        assert guest.kernel_release(str(path)) == 'unknown'
    write_kernel(path, b'6.1.0', magic=b'ARM\x64')
    assert guest.kernel_release(str(path)) == 'unknown'


def test_rounds():
    console = """[    1.2] booting
vqos sysbench 3.10 120 0.9
vqos-start sysbench 4.00
vqos-start sha512 4.10
vqos-stop sha512 4.50
vqos-stop sysbench 5.00
vqos sysbench 5.02 120 0.98
vqos-start sysbench 6.00
vqos-stop sysbench 7.50
vqos-start sysbench 8.00
vqos sysbench 9.00 120 0.98
"""
    assert guest.rounds(console.splitlines()) == [
        guest.Round('sysbench', 5.02, 120, 1.0)]
    assert guest.rounds(console.splitlines(), 'sha512') == []


def test_command_line():
    words = guest.command_line(('sysbench', 'awk'), 7, {'awk': 2}, 3).split()
    assert 'console=ttyS0' in words
    assert words[-4:] == ['vqos.kinds=sysbench,awk', 'vqos.rounds=7',
                          'vqos.spinners=3', 'vqos.events.awk=2']


@pytest.mark.parametrize(('options', 'message'), [
    ({'kinds': ['fork-bomb']}, "'fork-bomb', it may be one of sysbench"),
    ({'kinds': []}, 'needs a kind of work'),
    ({'rounds': -1}, 'not negative'),
    ({'spinners': -1}, 'not negative'),
    ({'events': {'awk': 0}}, 'at least 1'),
    ({'events': {'no such': 1}}, "'no such'")])
def test_command_line_refuses(options, message):
    with pytest.raises(ValueError, match=message):
        guest.command_line(**options)


def test_init_knows_every_kind_and_option():
    text = guest.measuring_init()
    assert text.startswith('#!/bin/busybox sh\n')
    assert not re.search('@[a-z0-9_]+@', text)
    for kind, events in guest.EVENTS_PER_ROUND.items():
        assert re.search(rf"^defaults='.*\b{kind}={events}\b", text, re.M)
        assert re.search(rf'^            (.* )?{kind}( .*)?\)\s+round_of',
                         text, re.M)
    assert f'--cpu-max-prime={guest.SYSBENCH_MAX_PRIME} ' in text


def read_cpio(content):
    """The entries of a newc archive: name, mode, content, device."""
    offset, found = 0, {}
    while True:
        assert content[offset:offset + 6] == b'070701'
        fields = [int(content[offset + 6 + 8 * i:offset + 14 + 8 * i], 16)
                  for i in range(13)]
        _, mode, _, _, _, _, size, _, _, major, minor, name_size, _ = fields
        start = offset + 110
        name = content[start:start + name_size - 1].decode()
        start = (start + name_size + 3) // 4 * 4
        if name == 'TRAILER!!!':
            return found
        found[name] = (mode, content[start:start + size], (major, minor))
        offset = (start + size + 3) // 4 * 4


def test_archive(tmp_path):
    program = tmp_path / 'program'
    program.write_bytes(b'odd')
    program.chmod(0o755)
    archive = initramfs.Cpio()
    archive.add_device('/dev/console', 5, 1)
    archive.add_file('/usr/local/bin/program', str(program))
    archive.add_link('/bin/sh', 'busybox')
    archive.add_bytes('/init', b'#!/bin/sh\n', 0o755)
    entries = read_cpio(archive.to_bytes())
    assert entries['usr/local/bin/program'] == (
        stat.S_IFREG | 0o755, b'odd', (0, 0))
    assert entries['dev/console'] == (stat.S_IFCHR | 0o600, b'', (5, 1))
    assert entries['bin/sh'] == (stat.S_IFLNK | 0o777, b'busybox', (0, 0))
    assert entries['init'][1] == b'#!/bin/sh\n'
    # A directory comes before what is in it, else the kernel drops that.
    names = list(entries)
    for name in names:
        if parent := os.path.dirname(name):
            assert stat.S_ISDIR(entries[parent][0])
            assert names.index(parent) < names.index(name)
    assert archive.to_bytes() == archive.to_bytes()


def test_a_given_kernel_is_used(tmp_path):
    kernel = tmp_path / 'vmlinuz'
    kernel.touch()
    assert guest.find_kernel(str(kernel)) == str(kernel)


def test_a_given_kernel_that_is_missing(tmp_path):
    with pytest.raises(guest.GuestError, match='cannot be read'):
        guest.find_kernel(str(tmp_path / 'vmlinuz'))


def test_newest_kernel_is_found(tmp_path):
    for version in ('6.1.0-9-cloud-amd64', '6.1.0-56-cloud-amd64',
                    '5.10.0-99-amd64'):
        (tmp_path / f'vmlinuz-{version}').touch()
    assert guest.find_kernel(boot_dir=str(tmp_path)) == str(
        tmp_path / 'vmlinuz-6.1.0-56-cloud-amd64')


def test_cached_kernel_is_found(tmp_path):
    (tmp_path / 'kernel' / 'boot').mkdir(parents=True)
    cached = tmp_path / 'kernel' / 'boot' / 'vmlinuz-6.1.0-56-cloud-amd64'
    cached.touch()
    assert guest.find_kernel(boot_dir=str(tmp_path / 'nothing'),
                             cache_dir=str(tmp_path)) == str(cached)


def test_missing_tool_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv('PATH', str(tmp_path))
    with pytest.raises(guest.GuestError, match='no-such-tool'):
        programs.which('no-such-tool')
