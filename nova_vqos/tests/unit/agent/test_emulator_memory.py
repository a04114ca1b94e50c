# SPDX-License-Identifier: Apache-2.0
"""The memory that the host spends on a server's I/O, as agents report it."""

from hypothesis import given
from hypothesis import strategies as st
import pytest

from nova_vqos.agent.messages import server_report
from nova_vqos.tests.fixtures import agent
from nova_vqos.tests.fixtures import fakes

MIB = 2**20


@pytest.fixture
def world(tmp_path):
    made = agent.World(tmp_path)
    made.run()
    made.host.emulator_bytes[fakes.UUID] = 900 * MIB
    return made


def memory(world, **options):
    server, = world.ask(lambda: world.loop.servers_report(**options))
    return server.emulator_memory


@pytest.mark.parametrize('ram_mib, found', [
    (0, (900 * MIB, 900 * MIB)), (512, (388 * MIB, 900 * MIB)),
    (1024, (0, 900 * MIB))])
def test_bounds_by_how_much_of_it_may_be_ram(world, ram_mib, found):
    world.change(private_ram_bytes=ram_mib * MIB)
    expected = server_report.EmulatorMemory(*found)
    assert memory(world, memory=True) == expected
    assert world.reported('emulator_memory') == (
        {'low_bytes': found[0], 'high_bytes': found[1]},)


def test_it_is_read_only_where_it_is_asked_for(world):
    world.change(private_ram_bytes=0)
    reads = []
    read = world.host.emulator_memory
    world.host.emulator_memory = lambda uuids: reads.append(uuids) or read(
        uuids)
    world.tick(120)
    assert memory(world) is None
    assert reads == []
    assert memory(world, memory=True) is not None
    assert reads == [[fakes.UUID]]


def test_what_is_not_known_is_not_guessed(world):
    assert memory(world, memory=True) is None
    world.change(private_ram_bytes=0)
    del world.host.emulator_bytes[fakes.UUID]
    assert memory(world, memory=True) is None
    assert world.reported('emulator_memory') == (None,)


@given(own=st.integers(0, 2**50), ram=st.integers(0, 2**50),
       resident_share=st.floats(0, 1))
def test_the_truth_is_within_the_bounds(own, ram, resident_share):
    """Whatever part of the guest's RAM is resident."""
    resident = own + min(ram, int(ram * resident_share))
    found = server_report.EmulatorMemory.of(resident, ram)
    assert found.low_bytes <= own <= found.high_bytes
    everywhere = server_report.EmulatorMemory.of(own, 0)
    assert everywhere.low_bytes == own == everywhere.high_bytes
