# SPDX-License-Identifier: Apache-2.0
"""Writes to domains, through the driver: their order, and when none is."""

import libvirt
import pytest

from nova_vqos.hypervisor import base
from nova_vqos.hypervisor.libvirt import driver
from nova_vqos.hypervisor.libvirt import session
from nova_vqos.tests.fixtures import fake_daemon
from nova_vqos.tests.fixtures import fake_host
from nova_vqos.tests.fixtures import fakes


def unsupported():
    """:returns: what the target of a migration answers about its job"""
    return fake_daemon.libvirt_error(
        'unsupported', libvirt.VIR_ERR_OPERATION_UNSUPPORTED)


def test_limits_of_whole_domains_are_written_in_order(hypervisor, monkeypatch):
    domain = fake_daemon.FakeDomain()
    monkeypatch.setattr(hypervisor._session, 'lookup', lambda _uuid: domain)
    hypervisor.write(fakes.UUID, [
        base.Change(base.Parameter.QUOTA_US, 15_000),
        base.Change(base.Parameter.DOMAIN_PERIOD_US, 50_000),
        base.Change(base.Parameter.DOMAIN_QUOTA_US, 30_000)])
    assert domain.set == [[('vcpu_quota', 15_000), ('global_period', 50_000),
                           ('global_quota', 30_000)]]


class TestWrite:
    def write(self, hypervisor, monkeypatch, domain, *changes):
        monkeypatch.setattr(hypervisor._session, 'lookup',
                            lambda _uuid: domain)
        hypervisor.write(fakes.UUID, [
            base.Change(base.Parameter[name], value)
            for name, value in changes])

    def test_the_order_is_kept(self, hypervisor, monkeypatch):
        for order in (['QUOTA_US', 'PERIOD_US'], ['PERIOD_US', 'QUOTA_US']):
            domain = fake_daemon.FakeDomain()
            self.write(hypervisor, monkeypatch, domain,
                       *((name, 2000) for name in order))
            assert [name for name, _value in domain.set[0]] == [
                {'QUOTA_US': 'vcpu_quota', 'PERIOD_US': 'vcpu_period'}[name]
                for name in order]

    @pytest.mark.parametrize('state', [
        (libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_MIGRATION),
        (libvirt.VIR_DOMAIN_RUNNING, libvirt.VIR_DOMAIN_RUNNING_POSTCOPY)])
    def test_arriving_ones_are_not_asked(self, hypervisor, monkeypatch, state):
        domain = fake_daemon.FakeDomain(state)
        # Even to ask for the job would block there for 30 s.
        domain.jobStats = None
        with pytest.raises(base.DomainBusy):
            self.write(hypervisor, monkeypatch, domain, ('SHARES', 600))
        assert domain.set == []

    @pytest.mark.parametrize('job_type', [
        libvirt.VIR_DOMAIN_JOB_BOUNDED, libvirt.VIR_DOMAIN_JOB_UNBOUNDED,
        libvirt.VIR_DOMAIN_JOB_COMPLETED])
    def test_no_write_in_a_migration(self, hypervisor, monkeypatch, job_type):
        domain = fake_daemon.FakeDomain(job={
            'type': job_type,
            'operation': libvirt.VIR_DOMAIN_JOB_OPERATION_MIGRATION_OUT})
        with pytest.raises(base.DomainBusy):
            self.write(hypervisor, monkeypatch, domain, ('SHARES', 600))
        assert domain.set == []

    @pytest.mark.parametrize('since_ms', [
        # One that hangs, and one that is asked again and again.
        2000, 0])
    def test_no_write_while_a_monitor_hangs(self, hypervisor, monkeypatch,
                                            since_ms):
        """It would wait for 30 s: a few of them hold up all others."""
        if not since_ms:
            monkeypatch.setattr(session, '_HANGS_AFTER_MS', 30)
        domain = fake_daemon.FakeDomain(
            control=(libvirt.VIR_DOMAIN_CONTROL_OCCUPIED, 0, since_ms))
        # Even to ask for the job would block.
        domain.jobStats = None
        with pytest.raises(base.DomainBusy):
            self.write(hypervisor, monkeypatch, domain, ('SHARES', 600))
        assert domain.set == []

    def test_a_monitor_that_answers_is_waited_for(self, hypervisor,
                                                  monkeypatch):
        domain = fake_daemon.FakeDomain()
        answers = [(libvirt.VIR_DOMAIN_CONTROL_OK, 0, 0),
                   (libvirt.VIR_DOMAIN_CONTROL_OCCUPIED, 0, 1990),
                   (libvirt.VIR_DOMAIN_CONTROL_OCCUPIED, 0, 1980)]
        monkeypatch.setattr(domain, 'controlInfo', lambda: answers.pop())
        self.write(hypervisor, monkeypatch, domain, ('SHARES', 600))
        assert answers == []
        assert domain.set == [[('cpu_shares', 600)]]

    def test_one_that_arrives_is_waited_for(self, hypervisor, monkeypatch):
        """Its guest runs already, and libvirt still takes no writes."""
        domain = fake_daemon.FakeDomain()
        errors = [unsupported() for _ in range(3)]

        def job_stats():
            if errors:
                raise errors.pop()
            return {'type': libvirt.VIR_DOMAIN_JOB_NONE}
        domain.jobStats = job_stats
        self.write(hypervisor, monkeypatch, domain, ('SHARES', 600))
        assert errors == []
        assert domain.set == [[('cpu_shares', 600)]]

    def test_one_that_arrives_for_long_is_busy(self, hypervisor, monkeypatch):
        monkeypatch.setattr(session, '_ARRIVAL_TIMEOUT_S', 0.03)
        domain = fake_daemon.FakeDomain()

        def job_stats():
            raise unsupported()
        domain.jobStats = job_stats
        with pytest.raises(base.DomainBusy):
            self.write(hypervisor, monkeypatch, domain, ('SHARES', 600))
        assert domain.set == []

    def test_a_backup_delays_no_other_domain(self, hypervisor, monkeypatch):
        domain = fake_daemon.FakeDomain(job={
            'type': libvirt.VIR_DOMAIN_JOB_UNBOUNDED,
            'operation': libvirt.VIR_DOMAIN_JOB_OPERATION_BACKUP})
        self.write(hypervisor, monkeypatch, domain, ('SHARES', 600))
        assert domain.set == [[('cpu_shares', 600)]]

    def test_bursts_are_cleared_first_and_named_once(
            self, tmp_path, hypervisor, monkeypatch, caplog):
        host = fake_host.FakeHost(tmp_path, *fake_host.LAYOUTS['v1'])
        host.write('run/a.pid', f'{fake_host.PID}\n')
        path = host.tuned / 'emulator' / 'cpu.cfs_burst_us'
        domain = fake_daemon.FakeDomain()
        for _ in range(2):
            path.write_text('7')
            self.write(hypervisor, monkeypatch, domain, ('QUOTA_US', 15_000))
            assert path.read_text() == '0'
        (warning,) = [one for one in caplog.records
                      if one.levelname == 'WARNING']
        for part in fakes.UUID, str(path), '7 us':
            assert part in warning.getMessage()

    def test_a_write_needs_no_burst(self, hypervisor, monkeypatch, caplog):
        """Nor that the domain's cgroup be found."""
        domain = fake_daemon.FakeDomain()
        self.write(hypervisor, monkeypatch, domain, ('QUOTA_US', 15_000))
        assert domain.set == [[('vcpu_quota', 15_000)]]
        assert fakes.UUID in caplog.text

    def test_unlimited_has_another_name_on_v2(self, tmp_path, monkeypatch):
        (tmp_path / 'sys/fs/cgroup').mkdir(parents=True)
        (tmp_path / 'sys/fs/cgroup/cgroup.controllers').write_text('cpu\n')
        hypervisor = driver.LibvirtHypervisor(
            'test:///default', root=str(tmp_path), run_path=str(tmp_path))
        hypervisor.connect(lambda _event: None)
        domain = fake_daemon.FakeDomain(refuse=[-1])
        self.write(hypervisor, monkeypatch, domain, ('QUOTA_US', None))
        assert domain.set == [[('vcpu_quota', 17_592_186_044_415)]]
        hypervisor.close()

    def test_a_refused_limit_on_v1_is_an_error(self, hypervisor, monkeypatch):
        domain = fake_daemon.FakeDomain(refuse=[-1])
        with pytest.raises(base.HypervisorError, match='refused'):
            self.write(hypervisor, monkeypatch, domain, ('QUOTA_US', None))
