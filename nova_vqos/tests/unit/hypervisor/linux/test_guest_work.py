# SPDX-License-Identifier: Apache-2.0
"""Which counter counts a domain, and which of its readings are believed."""

import errno

import hypothesis
from hypothesis import strategies as st
import pytest

from nova_vqos.hypervisor import base
from nova_vqos.hypervisor.linux import guest_work
from nova_vqos.hypervisor.linux import instructions
from nova_vqos.hypervisor.linux import perf
from nova_vqos.tests.fixtures import counter_file
from nova_vqos.tests.fixtures import fake_host
from nova_vqos.tests.fixtures import fakes
from nova_vqos.tests.unit.hypervisor.linux import test_instructions

UUID = fakes.UUID
PID = fake_host.PID
RUNS = {UUID: 1}

kernel = test_instructions.kernel


@pytest.fixture
def host(host):
    host.group('vcpu0', 50)
    host.group('vcpu1', 51)
    host.times({'': 0, 'vcpu0': 0, 'vcpu1': 0})
    return host


@pytest.fixture
def directory(tmp_path):
    return tmp_path / 'instructions'


@pytest.fixture
def reader(host, cache, directory, kernel):
    """A host whose CPU has no counters, unless a test clears that."""
    kernel.errors.update(dict.fromkeys((50, 51, 52), errno.ENOENT))
    made = guest_work.WorkReader(cache, str(host.root), str(directory))
    yield made
    made.close()
    assert not kernel.opened


def read(reader, runs=RUNS):
    return reader.read(runs).get(UUID)


class TestEmulatorCounter:
    def test_instructions_come_with_their_cpu_time(self, host, reader,
                                                   directory):
        counter_file.write(directory, PID, 1000, 10)
        host.time('', 1000, 3)
        assert read(reader) is None
        counter_file.write(directory, PID, 5000, 20)
        host.time('', 1250, 7)
        host.time('vcpu0', 600, 4)
        found = read(reader)
        assert (found.instructions, found.vcpu_ns, found.throttled_ns,
                found.vcpus) == (5020, 1_250_000_000, 11_000_000, 2)
        assert not reader.problems()

    def test_a_run_stays_the_same_while_it_is_counted(self, host, reader,
                                                      directory):
        runs = set()
        for count in 1, 2, 3, 4:
            counter_file.write(directory, PID, count)
            runs.add(getattr(read(reader), 'run', None))
        host.group('vcpu2', 52)
        host.time('vcpu2', 0)
        counter_file.write(directory, PID, 5)
        assert read(reader).vcpus == 3
        runs.add(read(reader).run)
        assert len(runs) == 2 and None in runs

    def test_a_guest_that_idles_has_no_problem(self, reader, directory):
        counter_file.write(directory, PID, 5)
        for _ in range(3):
            assert read(reader) is None
        assert reader.problems() == {}

    def test_one_that_is_not_asked_for_is_closed_and_begins_anew(
            self, reader, directory):
        for count in 1, 2:
            counter_file.write(directory, PID, count)
            first = read(reader)
        assert reader.read({}) == {}
        assert read(reader) is None
        counter_file.write(directory, PID, 9)
        assert read(reader).run != first.run

    def test_another_start_of_the_domain_is_another_run(
            self, host, reader, directory):
        for count in 1000, 2000:
            counter_file.write(directory, PID, count)
            first = read(reader)
        # Of the same process id.
        host.emulators[UUID] = host.emulators[UUID]._replace(run_id=2)
        host.start('9999')
        counter_file.write(directory, PID, 10)
        assert read(reader, {UUID: 2}) is None
        counter_file.write(directory, PID, 20)
        second = read(reader, {UUID: 2})
        assert second.instructions == 20
        assert second.run != first.run

    def test_a_domain_that_is_gone_is_left_out(self, host, reader):
        host.emulators.clear()
        assert read(reader) is None
        assert reader.problems() == {}

    def test_why_none_is_counted(self, reader, directory):
        assert read(reader) is None
        problem = reader.problems()[UUID]
        assert str(directory / str(PID)) in problem
        assert 'performance events' in problem
        counter_file.write(directory, PID, 1)
        read(reader)
        # Not before it has counted.
        assert UUID in reader.problems()
        counter_file.write(directory, PID, 2)
        assert read(reader) is not None
        assert reader.problems() == {}

    def test_a_problem_goes_with_its_domain(self, reader):
        read(reader)
        reader.read({})
        assert reader.problems() == {}


class TestImpossibleReadings:
    @pytest.fixture
    def counted(self, host, reader, directory):
        """A domain that is counted, and how a reading of it is made."""
        def count(number, used_ms):
            counter_file.write(directory, PID, number)
            host.time('', used_ms)
            return read(reader)
        count(1_000_000, 1000)
        return count, count(2_000_000, 2000)

    @pytest.mark.parametrize('number, used_ms', [
        (1_999_999, 3000), (0, 3000),
        # 1e11 a second, and as much for a tenth of a second.
        (2_000_000 + 111 * 10**9, 3000), (2**64 - 1, 100_000)])
    def test_they_are_refused_and_counting_begins_anew(
            self, reader, counted, number, used_ms):
        count, before = counted
        assert count(number, used_ms) is None
        assert UUID in reader.problems()
        assert count(500, used_ms) is None
        after = count(1500, used_ms + 10)
        assert after.run != before.run
        assert after.instructions == 1500

    def test_the_fastest_that_is_possible(self, counted):
        count, before = counted
        after = count(2_000_000 + 99 * 10**9, 3000)
        assert after.run == before.run

    def test_a_file_that_stands_still(self, reader, counted):
        count, before = counted
        assert count(2_000_000, 2900).run == before.run
        assert count(2_000_000, 3000) is None
        assert 'no instruction' in reader.problems()[UUID]
        assert count(2_000_000, 3500) is None

    def test_what_its_emulator_left_is_no_count(self, host, reader,
                                                directory):
        counter_file.write(directory, PID, 10**9)
        for used_ms in 100, 500, 1100, 2000:
            host.time('', used_ms)
            assert read(reader) is None
        assert 'no instruction' in reader.problems()[UUID]

    @hypothesis.given(st.lists(st.tuples(
        st.integers(0, 10**12), st.integers(0, 5 * 10**9)), max_size=20))
    def test_what_is_believed_grows_at_a_possible_speed(self, readings):
        checked = guest_work.Plausibility()
        vcpu_ns, believed = 0, []
        for number, ran_ns in readings:
            vcpu_ns += ran_ns
            try:
                checked.check(number, vcpu_ns)
            except instructions.CountError:
                break
            believed.append((number, vcpu_ns))
        for (before, before_ns), (after, after_ns) in zip(
                believed, believed[1:], strict=False):
            assert before <= after
            assert after - before <= 1e11 * (after_ns - before_ns + 1e8) / 1e9


class TestCpuCounter:
    @pytest.fixture(autouse=True)
    def _counters(self, reader, kernel):
        kernel.errors.clear()

    def count(self, host, reader, kernel, number, used_ms):
        kernel.set(50, used_ms, used_ms, number)
        host.time('', used_ms)
        return read(reader)

    def test_it_counts_where_the_emulator_does_not(self, host, reader,
                                                   kernel):
        assert self.count(host, reader, kernel, 0, 0) is None
        assert self.count(host, reader, kernel, 900, 500).instructions == 900
        assert set(kernel.opened) == {50, 51}
        reader.read({})
        assert not kernel.opened

    def test_a_file_of_the_emulator_comes_first(self, host, reader, kernel,
                                                directory):
        counter_file.write(directory, PID, 7)
        read(reader)
        assert not kernel.opened

    def test_an_emulator_is_no_guest_of_the_cpu(self, host, reader, kernel):
        """Under TCG nothing runs as a guest: the events count nothing."""
        for used_ms in 0, 400, 900:
            assert self.count(host, reader, kernel, 0, used_ms) is None
        for used_ms in 1500, 1600, 2700, 2800:
            assert self.count(host, reader, kernel, 0, used_ms) is None
            assert 'no instruction' in reader.problems()[UUID]

    def test_a_vcpu_that_is_plugged_in_begins_another_run(
            self, host, reader, kernel):
        self.count(host, reader, kernel, 0, 0)
        before = self.count(host, reader, kernel, 900, 500)
        host.group('vcpu2', 52)
        host.time('vcpu2', 0)
        kernel.set(52, 0, 0, 0)
        assert self.count(host, reader, kernel, 1800, 1000) is None
        assert set(kernel.opened) == {50, 51, 52}
        after = self.count(host, reader, kernel, 2000, 1100)
        assert after.run != before.run
        assert after.instructions == 200

    def test_a_vcpu_that_is_unplugged_begins_another_run(
            self, host, reader, kernel):
        self.count(host, reader, kernel, 0, 0)
        before = self.count(host, reader, kernel, 900, 500)
        host.remove('vcpu1')
        assert self.count(host, reader, kernel, 1800, 1000) is None
        assert set(kernel.opened) == {50}
        after = self.count(host, reader, kernel, 2000, 1100)
        assert after.run != before.run

    def test_a_loss_begins_another_run(self, host, reader, kernel):
        self.count(host, reader, kernel, 0, 0)
        before = self.count(host, reader, kernel, 900, 500)
        kernel.counts[51] = perf.Counts(100, 0, (0,))
        assert self.count(host, reader, kernel, 1800, 1000) is None
        assert 'other events' in reader.problems()[UUID]
        self.count(host, reader, kernel, 1900, 1100)
        after = self.count(host, reader, kernel, 2000, 1200)
        assert after.run != before.run
        assert after.instructions == 100

    def test_a_file_that_lies_gives_way(self, host, reader, kernel,
                                        directory):
        counter_file.write(directory, PID, 7)
        self.count(host, reader, kernel, 0, 0)
        counter_file.write(directory, PID, 6)
        self.count(host, reader, kernel, 10, 10)
        self.count(host, reader, kernel, 20, 20)
        assert self.count(host, reader, kernel, 30, 30).instructions == 10
        assert reader.problems() == {}

    def test_files_are_bounded(self, host, cache, directory, kernel):
        reader = guest_work.WorkReader(cache, str(host.root), str(directory),
                                       most_files=1)
        read(reader)
        assert not kernel.opened
        assert '0 of 1' in reader.problems()[UUID]


def test_the_daemon_may_be_away(host, directory, kernel):
    def find(_uuid):
        raise base.Unavailable('away')
    reader = guest_work.WorkReader(host.cache(find=find), str(host.root),
                                   str(directory))
    assert reader.read(RUNS) == {}
    assert reader.problems() == {}
