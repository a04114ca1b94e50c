# SPDX-License-Identifier: Apache-2.0
"""The calibration of I/O, as far as it needs no network and no disk."""

import dataclasses
import os
import socket
import struct

from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import pytest

from nova_vqos import files
from nova_vqos.calibration import host_cpus
from nova_vqos.calibration.benchmark import CalibrationError
from nova_vqos.calibration.io import accounts
from nova_vqos.calibration.io import disk
from nova_vqos.calibration.io import measure
from nova_vqos.calibration.io import network
from nova_vqos.calibration.io import traffic
from nova_vqos.cmd.calibrate import io as command
from nova_vqos.cmd.calibrate import part
from nova_vqos.profile import document
from nova_vqos.profile import io
from nova_vqos.profile import validity
from nova_vqos.tests.fixtures import make_profiles

MIB = 1024 * 1024
ETHERNET, VIRTIO = 14, 10


@settings(deadline=None)
@given(size=st.integers(traffic.LEAST_BYTES, traffic.MOST_BYTES),
       mode=st.sampled_from(traffic.MODES))
def test_packets_are_of_their_size_and_sound(size, mode):
    made = traffic.packets(mode, size)
    for packet in dataclasses.astuple(made):
        virtio, frame = packet[:VIRTIO], packet[VIRTIO:]
        assert len(frame) == size
        header = struct.unpack('!10H', frame[ETHERNET:ETHERNET + 20])
        # RFC 1071: with the checksum in it, all ones.
        assert ones_sum(header) == 0xffff
        assert header[1] == size - ETHERNET
        content = frame[ETHERNET + 20:]
        if size <= traffic.MOST_FRAME_BYTES:
            assert frame[ETHERNET + 9] == socket.IPPROTO_UDP
            assert struct.unpack('!H', content[4:6]) == (len(content),)
            assert not any(virtio)
        else:
            assert frame[ETHERNET + 9] == socket.IPPROTO_TCP
            # Divided, it is frames of a network with an MTU of 1500 bytes.
            flags, kind, headers, segment, start, offset = struct.unpack(
                '=BBHHHH', virtio)
            assert (flags, kind) == (1, 1)
            assert headers == ETHERNET + 20 + 20 == start + 20
            assert headers - ETHERNET + segment <= 1500
            # The sum of addresses, protocol and length.
            assert content[offset:offset + 2] == struct.pack('!H', ones_sum(
                (*header[6:], socket.IPPROTO_TCP, len(content))))
    # So that no protocol takes what is to end where it arrives.
    if size <= traffic.MOST_FRAME_BYTES:
        assert made.lost[VIRTIO + 12:VIRTIO + 14] == b'\x88\xb5'


def ones_sum(words):
    total = sum(words)
    while total >> 16:
        total = (total & 0xffff) + (total >> 16)
    return total


@pytest.mark.parametrize('size', [0, 63, 65_536, -1])
def test_no_such_packet(size):
    with pytest.raises(ValueError, match='from 64 to 65535 bytes'):
        traffic.packets('bridge', size)


def test_all_sizes_that_are_measured_are_packets():
    assert min(network.SIZES) >= traffic.LEAST_BYTES
    assert max(network.SIZES) <= traffic.MOST_BYTES


@pytest.mark.parametrize('mode', traffic.MODES)
def test_a_set_up_touches_nothing_but_its_own(mode):
    """Each interface that is set up was made here, and its name is short."""
    made = {'lo', 'tap', 'lone_tap'}
    for words in traffic.commands(mode):
        assert words[0] in ('ip', 'nft', 'ovs-dpctl')
        if words[:2] == ['ovs-dpctl', 'add-dp']:
            made |= {words[2]}
        elif words[0] == 'ovs-dpctl':
            assert words[2] in made
            if words[1] == 'add-if':
                assert {word.partition(',')[0] for word in words[3:]} <= made
        elif words[:3] == ['ip', 'link', 'add']:
            made |= {words[4] if words[3] == 'name' else words[3]}
            made |= {words[words.index('peer') + 2]} if 'peer' in words \
                else set()
        elif words[:3] == ['ip', 'link', 'set']:
            assert words[3] in made
            assert 'master' not in words or words[5] in made
        elif 'dev' in words:
            assert words[words.index('dev') + 1] in made
        assert 'netns' not in words
    assert max(map(len, made)) <= 15


@pytest.mark.parametrize(('mode', 'has_bridge', 'forwards', 'translates'), [
    ('bridge', True, False, False), ('routed', False, True, False),
    ('nat', False, True, True), ('openvswitch', False, False, False)])
def test_what_is_between(mode, has_bridge, forwards, translates):
    words = [set(line) for line in traffic.commands(mode)]
    assert any('ovs-dpctl' in line for line in words) == (
        mode == 'openvswitch')
    assert any('bridge' in line for line in words) == has_bridge
    assert ('net/ipv4/ip_forward' in traffic.settings(mode)) == forwards
    assert any('snat' in line for line in words) == translates
    assert any('dnat' in line for line in words) == translates


def test_a_tool_that_is_missing(monkeypatch, tmp_path):
    monkeypatch.setenv('PATH', str(tmp_path))
    assert traffic.missing_tool('routed') == \
        'ip is missing: install the package iproute2'
    assert 'nft is missing: install the package nftables' in \
        traffic.missing_tool('nat')
    with pytest.raises(CalibrationError, match='iproute2'):
        measure.choose_modes(traffic.MODES, {})
    with pytest.raises(CalibrationError, match='iproute2'):
        measure.choose_modes(['routed'], {})


def test_without_nft_the_rest_is_measured(monkeypatch, tmp_path):
    program = tmp_path / 'ip'
    program.write_text('')
    program.chmod(0o755)
    monkeypatch.setenv('PATH', str(tmp_path))
    unmeasured = {}
    assert measure.choose_modes(traffic.MODES, unmeasured) == ['bridge',
                                                               'routed']
    assert 'nftables' in unmeasured['nat']
    assert measure.choose_modes(['routed'], unmeasured) == ['routed']
    assert unmeasured['bridge'] == 'not wanted'


def test_open_vswitch_is_measured_where_the_kernel_has_it(
        monkeypatch, tmp_path):
    monkeypatch.setenv('PATH', str(tmp_path))
    assert traffic.missing_tool('openvswitch', str(tmp_path)) == \
        'the kernel has not loaded openvswitch'
    (tmp_path / 'sys/module/openvswitch').mkdir(parents=True)
    assert 'install the package openvswitch-switch' in \
        traffic.missing_tool('openvswitch', str(tmp_path))
    for name in ('ip', 'nft', 'ovs-dpctl'):
        (tmp_path / name).write_text('')
        (tmp_path / name).chmod(0o755)
    assert traffic.missing_tool('openvswitch', str(tmp_path)) == ''


def test_a_host_without_open_vswitch_is_not_warned_of(monkeypatch, caplog):
    monkeypatch.setattr(traffic, 'missing_tool', lambda mode: (
        'not loaded' if mode == 'openvswitch' else ''))
    unmeasured = {}
    assert measure.choose_modes(traffic.MODES, unmeasured) == [
        'bridge', 'routed', 'nat']
    assert unmeasured['openvswitch'] == 'not loaded'
    assert not caplog.records


def test_interrupts_of_some_pcpus():
    stat = ('cpu  9 9 9 9 9 99 99 9\ncpu0 1 2 3 4 5 6 7 8 9 10\n'
            'cpu1 1 2 3 4 5 60 70 8 9 10\ncpu10 1 2 3 4 5 600 700 8 9 10\n')
    tick_ns = 1_000_000_000 // os.sysconf('SC_CLK_TCK')
    assert accounts.interrupt_ns(stat, [0]) == 13 * tick_ns
    assert accounts.interrupt_ns(stat, [0, 1]) == 143 * tick_ns
    assert accounts.interrupt_ns(stat, [7]) == 0


def test_threads_of_the_kernel(tmp_path):
    for number, name, flags in ((2, 'kthreadd', 0x208040),
                                (15, 'ksoftirqd/0', 0x4208040),
                                (16, 'ksoftirqd/10', 0x4208040),
                                (20, 'ksoftirqd/0', 0x400000),
                                (21, 'a) (b', 0x208040)):
        process = tmp_path / 'proc' / str(number)
        process.mkdir(parents=True)
        (process / 'stat').write_text(
            f'{number} ({name}) S 2 0 0 0 -1 {flags} 0 0')
    (tmp_path / 'proc/30').mkdir()
    root = str(tmp_path)
    assert accounts.kernel_threads(root) == [2, 15, 16, 21]
    assert accounts.kernel_threads(root, name='ksoftirqd/(0|1)') == [15]


def reading(soaked_ns, soaked):
    return accounts.Reading(0, 0, soaked_ns, soaked)


@settings(deadline=None)
@given(piece=st.integers(1000, 9000), done=st.integers(100, 10_000),
       before=st.integers(100, 10_000), lost=st.integers(0, 10**6))
def test_what_soakers_lost(piece, done, before, lost):
    """Whatever the machine's speed is, and whatever else took time."""
    path = reading((done * piece + lost, 500 * piece), (done, 500))
    base = reading((before * piece, 100 * piece), (before, 100))
    assert accounts.lost_ns(path, base) == pytest.approx(lost, abs=1e-3)


def test_a_soaker_that_got_no_time():
    assert accounts.lost_ns(reading((0,), (0,)), reading((0,), (0,))) == 0


def test_no_block_device(tmp_path):
    file = tmp_path / 'disk'
    file.write_bytes(b'')
    with pytest.raises(CalibrationError, match='is no block device'):
        disk.open_device(str(file))
    with pytest.raises(CalibrationError, match='No such file'):
        disk.open_device(str(tmp_path / 'none'))


@pytest.mark.parametrize(('size', 'written_at', 'said'), [
    (disk.FILE_BYTES, None, None),
    (disk.FILE_BYTES + 512, None, None),
    (disk.FILE_BYTES - 512, None, 'it needs 134217728'),
    (disk.FILE_BYTES, 446, 'would be lost'),
    (disk.FILE_BYTES, disk.FILE_BYTES - 1, 'would be lost'),
    (disk.FILE_BYTES, MIB - 1, 'would be lost')])
def test_a_device_with_something_on_it(tmp_path, size, written_at, said):
    path = str(tmp_path / 'disk')
    with open(path, 'w+b') as file:
        file.truncate(size)
        if written_at is not None:
            os.pwrite(file.fileno(), b'\1', written_at)
        if said is None:
            disk.check_empty(path, file.fileno())
        else:
            with pytest.raises(CalibrationError, match=said):
                disk.check_empty(path, file.fileno())


def make_profile(pcpus=(0, 1), **changes):
    return make_profiles.make_profile(
        'compute1', make_profiles.make_class(pcpus, 1.0),
        **{'fingerprint': {'kernel': '6.1'}} | changes)


@pytest.fixture
def usable(monkeypatch):
    monkeypatch.setattr(os, 'sched_getaffinity',
                        lambda process: {0, 1, 2, 3, 4})


@pytest.mark.parametrize(('wanted', 'chosen'), [
    (None, (2, 3)), ('3-4', (3, 4)), ('2,4', (2, 4))])
def test_two_pcpus(usable, wanted, chosen):
    held = make_profile({2, 3, 4, 9})
    assert measure.choose_pcpus(held, wanted) == chosen


@pytest.mark.parametrize(('wanted', 'said'), [
    ('2', 'with two pCPUs, and here are 1'),
    ('2-4', 'here are 3'), ('0,2', 'the profile has 2-4,9'),
    ('2,9', '9 cannot be used'), ('2,', 'no list of pCPUs')])
def test_no_two_pcpus(usable, wanted, said):
    held = make_profile({2, 3, 4, 9})
    with pytest.raises(CalibrationError, match=said):
        measure.choose_pcpus(held, wanted)


def test_a_host_of_one_pcpu(usable):
    with pytest.raises(CalibrationError, match='here are 1'):
        measure.choose_pcpus(make_profile({0}), None)


def sample(kernel=2000.0, backend=1500.0, unaccounted=0.0):
    return network.Sample(kernel, backend, unaccounted)


def sweep(max_sweeps, until_s):
    taken = []

    def take(kind, direction):
        taken.append((kind, direction))
        return {64: sample(), 128: sample()}
    found = measure.sweep('test', [('a', 'rx'), ('b', 'tx')], take,
                          max_sweeps, until_s)
    return taken, found


def test_sweeps_take_turns():
    taken, found = sweep(6, float('inf'))
    assert taken == [('a', 'rx'), ('b', 'tx')] * 6
    assert {size: len(samples) for size, samples in
            found['b', 'tx'].items()} == {64: 6, 128: 6}


def test_time_is_over():
    """It ends as soon as there is enough for an interval."""
    taken, _found = sweep(100, 0)
    assert len(taken) == 4 * 2


def test_what_becomes_of_samples():
    found = measure.summary({
        size: [sample(1000 + size / 4 + wobble, 1500 + wobble, wobble)
               for wobble in (-2, -1, 0, 1, 2)]
        for size in reversed(network.SIZES)})
    assert list(found.by_size) == list(network.SIZES)
    for size, cost in found.by_size.items():
        assert cost.value == 1000 + size / 4
        assert cost.value - 10 < cost.low < cost.value < cost.high
    assert found.backends[64] == 1500
    assert found.unaccounted.low < 0 < found.unaccounted.high
    assert found.samples == 5 * len(network.SIZES)
    # It can be part of a profile.
    interface = io.Interface('bridge', found, found)
    made = make_profiles.make_io(interfaces=(interface,))
    assert io.from_document(io.document(made)) == made


@pytest.mark.parametrize(('at_64', 'at_1514', 'billed'), [
    # Scatter around a cost, and around nothing.
    ((900, 1000, 1000, 1100), (1900, 2000, 2000, 2100), (1000, 2000)),
    ((-90, 10, 10, 90), (-900, 1000, 1000, -1100), (0, 0)),
    # Larger ones do no less work.
    ((900, 1000, 1000, 1100), (-900, 1000, 1000, -1100), (1000, 1000)),
    # Its speed drifts, and it is not nothing.
    ((500, 500, 600, 600, 1400, 1400, 1500, 1500),
     (1000, 1000, 1200, 1200, 2800, 2800, 3000, 3000), (1000, 2000))])
def test_noise_is_not_billed(at_64, at_1514, billed):
    found = measure.summary({64: list(map(sample, at_64)),
                             1514: list(map(sample, at_1514))})
    assert tuple(cost.value for cost in found.by_size.values()) == billed


def ways(**dearer):
    """What was measured of each way, by how much some are dearer."""
    return {(mode, direction): make_profiles.make_measured(
        1000.0 + dearer.get(f'{mode}_{direction}', 0))
        for mode in ('bridge', 'routed') for direction in ('rx', 'tx')}


def test_as_the_research_says():
    assert measure.orderings(ways(
        bridge_rx=200, bridge_tx=100, routed_rx=400, routed_tx=300),
        ['bridge', 'routed']) == []


def test_not_as_the_research_says():
    notes = measure.orderings(ways(bridge_tx=50, routed_rx=900),
                              ['bridge', 'routed'])
    assert len(notes) == 2
    assert 'bridge: receiving is not dearer than sending' in notes[0]
    assert 'tx: routed is not dearer than bridge' in notes[1]
    assert measure.orderings(ways(routed_rx=1), ['routed']) == []


@pytest.mark.parametrize(('gap', 'is_reported'), [
    ((0, -50, 50), False), ((90, 60, 120), False), ((200, 110, 290), True),
    ((-200, -290, -110), True), ((200, 90, 310), False)])
def test_the_independent_check(gap, is_reported):
    """Within 5 % of 2000 ns, as far as the samples show."""
    found = {('nat', 'rx'): make_profiles.make_measured(
        2000.0, 0.0, unaccounted=io.Part(*gap))}
    assert bool(measure.gaps(found, ['nat'])) == is_reported


def test_a_profile_of_another_host(monkeypatch, tmp_path):
    record = str(tmp_path / 'verification.json')
    monkeypatch.setattr(part.fingerprint, 'of_host',
                        lambda emulator: {'kernel': '7.2'})
    with pytest.raises(CalibrationError,
                       match="command cpu first: kernel was '6.1'"):
        part.check_fresh(make_profile(), record)
    held = make_profile(fingerprint={'kernel': '7.2'})
    part.check_fresh(held, record)
    validity.store(record, held.id, 'stale', [
        {'pcpus': '0-1', 'drift': '-40.0%', 'verdict': 'stale'}])
    with pytest.raises(CalibrationError, match='have drifted by -40.0%'):
        part.check_fresh(held, record)


def test_where_disks_are(tmp_path, monkeypatch):
    assert command.disk_directory(str(tmp_path)) == str(tmp_path)
    with pytest.raises(CalibrationError, match='is no directory'):
        command.disk_directory(str(tmp_path / 'none'))
    monkeypatch.setattr(measure, 'DISK_DIRECTORY', str(tmp_path / 'none'))
    assert command.disk_directory(None) is None


def test_guests_at_work_are_in_the_way():
    with pytest.raises(CalibrationError,
                       match='use 0.50 pCPUs of 0-1.*--beside-guests'):
        host_cpus.Load(0.6, 0.5).refuse_guests({0, 1})
    host_cpus.Load(0.6, 0.0).refuse_guests({0, 1})


def test_without_a_profile(tmp_path):
    with pytest.raises(files.FileMissing, match='calibrate cpu'):
        document.load(str(tmp_path / 'none'))
