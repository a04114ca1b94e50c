# SPDX-License-Identifier: Apache-2.0
import io
import os
import re
import signal
import sys
import syslog
import time

import pytest

from nova_vqos import cputune
from nova_vqos import hooks
from nova_vqos.conf import default_path
from nova_vqos.hooks import install
from nova_vqos.hooks import libvirt
from nova_vqos.hooks import rewrite
from nova_vqos.profile import document
from nova_vqos.tests.fixtures import fake_host
from nova_vqos.tests.fixtures import make_profiles
from nova_vqos.tests.fixtures import waits
from nova_vqos.tests.unit import test_domain_xml
from nova_vqos.tests.unit.profile import test_document

XML = test_domain_xml.MIGRATABLE
STOCK_XML = XML.replace(b'resources:CUSTOM_VQOS_CPU_UNIT', b'hw:x').replace(
    b'vqos:cap', b'hw:y')


def make_profile(**coefficients):
    """A profile of pCPUs, given as p0=1.0, p1=2.0."""
    return test_document.make_profile(cpu_classes=tuple(
        make_profiles.make_class({int(pcpu[1:])}, coefficient)
        for pcpu, coefficient in coefficients.items()))


@pytest.fixture(autouse=True)
def root_alone(monkeypatch):
    """Others may write nothing that is installed here."""
    monkeypatch.setattr(install, 'find_fault', lambda _trusted: '')


@pytest.fixture
def logged(monkeypatch):
    lines = []

    def openlog(*arguments):
        assert arguments == ('nova-vqos-hook', syslog.LOG_PID,
                             syslog.LOG_DAEMON)
        monkeypatch.setattr(syslog, 'syslog',
                            lambda level, line: lines.append((level, line)))
    monkeypatch.setattr(syslog, 'openlog', openlog)
    monkeypatch.setattr(syslog, 'syslog', None)
    return lines


@pytest.fixture
def host(tmp_path, monkeypatch):
    """A host with a profile and a configuration."""
    monkeypatch.setattr(cputune, '_ROOT', str(tmp_path))
    return Host(tmp_path)


class Source(io.BytesIO):
    """Never read as a whole: a guest's XML may be endless."""

    def read(self, size):
        assert 0 < size <= rewrite.MAX_XML_BYTES + 1
        return super().read(size)


class Host:
    """Runs the hook on a host of its own."""

    def __init__(self, path):
        self.profile_path = path / 'profile.yaml'
        self.config_path = path / 'hook.conf'
        self._options = {}
        self.configure(profile=self.profile_path)
        self.calibrate(p0=1.0, p1=1.0)

    def configure(self, **options):
        self._options |= options
        self.config_path.write_text('[hook]\n' + ''.join(
            f'{name} = {value}\n' for name, value in self._options.items()))

    def calibrate(self, **coefficients):
        document.store(make_profile(**coefficients), str(self.profile_path))

    def run(self, xml, timeout_s=int(waits.LIMIT_S)):
        """:returns: (exit status, what it printed)"""
        target = io.BytesIO()
        status = rewrite.run('server', Source(xml), target,
                             str(self.config_path), timeout_s)
        # No alarm is left.
        assert signal.alarm(0) == 0
        return status, target.getvalue()


def values(xml):
    tuned = test_domain_xml.tuning(xml)
    return tuned['quota'], tuned['period'], tuned['shares']


def test_the_cap_becomes_that_of_this_host(host, logged, capsys):
    host.calibrate(p0=1.25, p1=1.25)
    status, result = host.run(XML)
    assert status == 0
    assert result == XML.replace(b'15000', b'12000')
    assert logged == [(syslog.LOG_INFO, 'server: 60 CU: shares 614, quota '
                       '12000, period 50000 us')]
    assert capsys.readouterr().err == ''


def test_it_is_idempotent(host, logged):
    host.calibrate(p0=0.7, p1=2.0)
    _, once = host.run(XML)
    assert once != XML
    assert host.run(once) == (0, once)


def test_nothing_is_to_change(host, logged):
    assert host.run(XML) == (0, XML)


def test_shares_are_those_of_cgroup_v2(host, logged, tmp_path):
    fake_host.FakeHost(tmp_path, *fake_host.LAYOUTS['v2'])
    _, result = host.run(XML)
    assert values(result) == ('15000', '50000', '60')


def test_a_floor_has_no_quota(host, logged):
    _, result = host.run(XML.replace(b'>hard<', b'>floor<'))
    assert b'<shares>614<' in result
    assert b'<quota' not in result
    assert b'<period' not in result
    assert logged[0][1].endswith('shares 614, quota none, period none us')


def test_a_cputune_is_made(host, logged):
    """Nova strips <shares> before a migration, and may strip all."""
    bare = XML.replace(test_domain_xml.CPUTUNE, b'')
    assert host.run(bare) == (0, XML)


def test_the_slowest_pcpu_of_the_guest_counts(host, logged):
    host.calibrate(p0=1.0, p1=0.5, p2=0.3)
    assert values(host.run(XML)[1])[0] == '30000'
    on_one = XML.replace(b"cpuset='0-1'", b"cpuset='0'")
    assert values(host.run(on_one)[1])[0] == '15000'
    on_all = XML.replace(b" cpuset='0-1'", b'')
    assert values(host.run(on_all)[1])[0] == '50000'


def test_pcpus_of_another_host_do_not_count(host, logged):
    host.calibrate(p0=1.0, p1=0.5)
    elsewhere = XML.replace(b"cpuset='0-1'", b"cpuset='64-127'")
    assert values(host.run(elsewhere)[1])[0] == '30000'


@pytest.mark.parametrize('vcpu, quota', [
    (b"'0-1'>4<", '15000'), (b"'0-1' current='3'>4<", '20000'),
    (b"'0-1' current='1'>4<", '30000')])
def test_hotplugged_vcpus_share_the_units(host, logged, vcpu, quota):
    host.configure(period_us=100_000)
    _, result = host.run(XML.replace(b"'0-1'>2<", vcpu))
    assert values(result)[0] == quota


def test_the_period_is_configured(host, logged):
    host.configure(period_us=100_000)
    assert values(host.run(XML)[1]) == ('30000', '100000', '614')


CACHE_XML = XML.replace(
    b'<nova:extraSpec name="vqos:cap">hard<',
    b'<nova:extraSpec name="vqos:quantum_class">cache<')


def test_the_period_holds_the_slice_of_class_cache(host, logged):
    host.calibrate(p0=0.5, p1=0.5)
    assert values(host.run(CACHE_XML)[1])[:2] == ('90000', '150000')
    host.configure(cache_max_period_us=149_999)
    assert values(host.run(CACHE_XML)[1])[:2] == ('30000', '50000')
    host.configure(quantum_slices='io:1000, cache:60000')
    assert values(host.run(CACHE_XML)[1])[:2] == ('60000', '100000')


@pytest.mark.parametrize('xml', [
    STOCK_XML,
    test_domain_xml.domain(),
    test_domain_xml.domain('<cputune><quota>5000</quota></cputune>'),
    STOCK_XML.replace(b'\n', b'\r\n') + b'<!-- x -->\n\n',
])
@pytest.mark.parametrize('on_error', ['pass', 'refuse'])
def test_servers_without_units_pass(host, logged, xml, on_error):
    host.configure(on_error=on_error, profile='/nonexistent')
    assert host.run(xml) == (0, xml)
    assert not logged


@pytest.mark.parametrize('content', [None, '', '[hook]\n'])
def test_no_configuration_is_as_good_as_an_empty_one(host, logged, content):
    host.config_path.unlink()
    if content is not None:
        host.config_path.write_text(content)
    settings = rewrite.load_settings(str(host.config_path))
    assert (settings.on_error, settings.profile_path, settings.period_us,
            settings.cache_max_period_us, settings.quantum_slices,
            settings.error) == ('pass', None, None, None, '', '')
    assert host.run(STOCK_XML) == (0, STOCK_XML)


def break_profile(host):
    host.profile_path.write_text(host.profile_path.read_text()[:100])


def change_profile(host):
    text = host.profile_path.read_text()
    host.profile_path.write_text(text.replace('compute1', 'compute2'))


WRONG_HOSTS = [
    (lambda host: host.profile_path.unlink(), 'does not exist'),
    (break_profile, 'not the JSON of a profile'),
    (change_profile, 'the content was changed'),
    (lambda host: host.profile_path.chmod(0o666), 'mode 0666'),
    (lambda host: host.profile_path.write_text('[' * 10**6), 'not the JSON'),
    (lambda host: host.calibrate(p0=0.2, p1=1.0),
     'a vCPU of 30 CU is faster than the pCPU, which has 20 CU'),
    (lambda host: host.calibrate(p0=900.0, p1=900.0),
     'slower than what a quota can express'),
    (lambda host: host.configure(period_us='soon'), "period_us is 'soon'"),
    (lambda host: host.configure(period_us='5'), 'period_us is 5'),
    (lambda host: host.configure(period_us='0'), 'period_us is 0'),
    (lambda host: host.configure(period_us='٥٠٠٠٠'), 'a number of'),
    (lambda host: host.configure(period_us='9' * 5000), 'a number of'),
    (lambda host: host.configure(cache_max_period_us='-1'),
     "cache_max_period_us is '-1'"),
    (lambda host: host.configure(cache_max_period_us='1000001'),
     'cache_max_period_us is 1000001, it must be from 1000 to 1000000'),
    (lambda host: host.configure(quantum_slices='cache'),
     "quantum_slices: the slice of 'cache' is '', it must be given as"),
    (lambda host: host.configure(quantum_slices='cache:100001'),
     "quantum_slices: the slice of 'cache' is '100001', it must be a whole"),
    (lambda host: host.configure(quantum_slices='cpu:1000'),
     "quantum_slices: the slice of 'cpu' is '1000'"),
    (lambda host: host.configure(colour='blue'), 'unknown option colour'),
]
WRONG_XMLS = [
    (b'', 'no element found'),
    (b'garbage', 'syntax error'),
    (XML[:-20], 'not the XML of a domain'),
    (XML.replace('ö'.encode(), b'\xff'), 'not well-formed'),
    (test_domain_xml.BOMB.encode(), 'a document type is declared'),
    (XML.replace(b'>60<', b'>0<'), "CUSTOM_VQOS_CPU_UNIT is '0'"),
    (XML.replace(b'>60<', b'>1099511627776<'), 'a whole number from 1 to'),
    (XML.replace(b'>hard<', b'>soft<'), "vqos:cap is 'soft'"),
    (XML.replace(b'vqos:cap', b'vqos:cup'), 'vqos:cup'),
    (XML.replace(b'vcpus>2<', b'vcpus>x<').replace(b"'0-1'>2<", b"'0-1'>x<"),
     'vcpus is 0'),
    (XML.replace(b'>60<', b'>1<'), 'at least 1 for each of the 2 vCPUs'),
    (XML.replace(b"cpuset='0-1'", b"cpuset='0-99999999'"), 'cpuset'),
    (XML + b' ' * rewrite.MAX_XML_BYTES, 'more than 4194304 bytes'),
]
WRONG = [(break_host, XML, says) for break_host, says in WRONG_HOSTS] + [
    (None, xml, says) for xml, says in WRONG_XMLS]


@pytest.mark.parametrize('break_host, xml, says', WRONG)
def test_errors_pass_unchanged(host, logged, capsys, break_host, xml, says):
    if break_host:
        break_host(host)
    assert host.run(xml) == (0, xml)
    ((level, line),) = logged
    assert level == syslog.LOG_ERR
    assert line.startswith('server: passed unchanged: ')
    assert says in line
    # A typed error is known by its text.
    assert not re.search('unchanged: [A-Z][A-Za-z]+: ', line)
    assert capsys.readouterr().err == f'nova-vqos hook: {line}\n'


@pytest.mark.parametrize('break_host, xml, says', WRONG)
def test_errors_refuse(host, logged, capsys, break_host, xml, says):
    host.configure(on_error='refuse')
    if break_host:
        break_host(host)
    assert host.run(xml) == (1, b'')
    ((_, line),) = logged
    assert line.startswith('server: refused: ')
    assert says in line
    assert capsys.readouterr().err == f'nova-vqos hook: {line}\n'


def test_an_unexpected_error_is_named(host, logged, monkeypatch):
    monkeypatch.setattr(cputune, 'compute', {}.__getitem__)
    assert host.run(XML) == (0, XML)
    ((level, line),) = logged
    assert level == syslog.LOG_ERR
    assert line.startswith('server: passed unchanged: TypeError: ')


@pytest.mark.parametrize('content, says', [
    ('on_error = refuse\n', 'cannot be read'),
    ('[hook\n', 'cannot be read'),
    ('[hook]\non_error = refuse\non_error = pass\n', 'cannot be read'),
    ('[other]\non_error = refuse\n', 'cannot be read'),
    ('[hook]\non_error = maybe\n', "on_error is 'maybe', it must be pass or"),
    ('\0', 'cannot be read'), (b'\xff\xfe', 'cannot be read'),
])
def test_a_configuration_that_cannot_be_used(host, logged, content, says):
    host.config_path.write_bytes(
        content if isinstance(content, bytes) else content.encode())
    assert host.run(XML) == (0, XML)
    assert says in logged[0][1]


@pytest.mark.parametrize('name', ['profile_path', 'config_path'])
def test_a_fifo_is_not_waited_for(host, logged, name):
    path = getattr(host, name)
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    assert host.run(XML) == (0, XML)
    assert 'is not a regular file' in logged[0][1]


def test_a_configuration_that_others_may_write(host, logged):
    """What it says of errors is not followed either."""
    host.config_path.write_text('[hook]\non_error = refuse\n')
    host.config_path.chmod(0o666)
    assert host.run(XML) == (0, XML)
    assert 'has mode 0666' in logged[0][1]


def test_what_never_ends(host, logged, monkeypatch):
    """As a file system that hangs."""
    monkeypatch.setattr(cputune, 'compute',
                        lambda *_args, **_options: time.sleep(waits.LIMIT_S))
    assert host.run(XML, timeout_s=1) == (0, XML)
    assert 'it took too long' in logged[0][1]


@pytest.mark.parametrize('padding', [
    b'<!-- \xc3\xa9 <cputune/> -->' * 50_000,
    b' ' * (rewrite.MAX_XML_BYTES - len(XML))])
def test_mebibytes_of_xml(host, logged, padding):
    host.calibrate(p0=1.25, p1=1.25)
    assert host.run(XML + padding) == (
        0, XML.replace(b'15000', b'12000') + padding)


def test_it_is_all_written_when_the_hook_ends(host, logged):
    raw = io.BytesIO()
    with io.BufferedWriter(raw) as target:
        rewrite.run('server', Source(XML), target, str(host.config_path),
                    int(waits.LIMIT_S))
        assert raw.getvalue() == XML


def test_names_cannot_write_log_lines(host, logged, capsys):
    rewrite.run('a\nb\0\udcff', io.BytesIO(b'x'), io.BytesIO(),
                str(host.config_path), int(waits.LIMIT_S))
    assert logged[0][1].startswith('a?b??: passed unchanged')
    assert capsys.readouterr().err.count('\n') == 1


@pytest.mark.parametrize('arguments', [
    ['server', operation, sub_operation, '-']
    for operation, sub_operation in [
        ('prepare', 'begin'), ('start', 'begin'), ('started', 'begin'),
        ('stopped', 'end'), ('release', 'end'), ('reconnect', 'begin'),
        ('attach', 'begin'), ('migrate', 'end'), ('restore', 'end'),
        ('', ''), ('--install', 'x')]
] + [['server'], ['--install', 'start', 'begin', '-']])
def test_other_operations_do_nothing(arguments, monkeypatch, capsys):
    monkeypatch.setattr(sys, 'stdin', None)
    monkeypatch.setattr(install, 'main', lambda _arguments: 99)
    assert libvirt.main(arguments) == 0
    assert capsys.readouterr() == ('', '')


@pytest.mark.parametrize('operation', ['migrate', 'restore'])
def test_both_ways_in_are_rewritten(operation, host, logged, monkeypatch):
    host.calibrate(p0=1.25, p1=1.25)
    target = io.TextIOWrapper(io.BytesIO())
    monkeypatch.setattr(sys, 'stdin', io.TextIOWrapper(io.BytesIO(XML)))
    monkeypatch.setattr(sys, 'stdout', target)
    monkeypatch.setattr(sys, 'argv', ['hook', 'server', operation, 'begin',
                                      '-'])
    assert libvirt.main(config=str(host.config_path)) == 0
    assert values(target.buffer.getvalue())[0] == '12000'


def test_install_and_uninstall(tmp_path, capsys):
    directory = tmp_path / 'hooks'
    arguments = ['--hooks-dir', str(directory), '--config',
                 str(tmp_path / 'hook.conf')]
    assert not hooks.is_installed(str(directory))
    assert libvirt.main(['--install', *arguments]) == 0
    path = directory / 'qemu.d' / '90-nova-vqos'
    assert hooks.is_installed(str(directory))
    assert path.stat().st_mode & 0o777 == 0o755
    assert libvirt.main(['--install', *arguments]) == 0
    assert capsys.readouterr().out.endswith('90-nova-vqos: up to date\n')
    assert os.listdir(directory) == ['qemu.d']
    assert os.listdir(path.parent) == ['90-nova-vqos']
    assert libvirt.main(['--uninstall', *arguments]) == 0
    assert libvirt.main(['--uninstall', *arguments]) == 0
    assert capsys.readouterr().out.endswith('90-nova-vqos: not there\n')
    assert not hooks.is_installed(str(directory))
    path.mkdir()
    assert not hooks.is_installed(str(directory))


def test_an_older_hook_is_replaced(tmp_path):
    install.install(str(tmp_path), '/etc/a.conf')
    path = tmp_path / default_path.HOOK_NAME
    assert install.install(str(tmp_path), '/etc/b.conf')
    assert '/etc/b.conf' in path.read_text()
    path.chmod(0o644)
    assert not hooks.is_installed(str(tmp_path))
    assert install.install(str(tmp_path), '/etc/b.conf')
    assert hooks.is_installed(str(tmp_path))


@pytest.mark.parametrize('action', ['--install', '--uninstall'])
def test_foreign_files_are_left_alone(tmp_path, capsys, action):
    for name in ('qemu', 'qemu.d/90-nova-vqos'):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text('#!/bin/sh\nexit 0\n')
    assert libvirt.main([action, '--hooks-dir', str(tmp_path)]) == 1
    assert 'is not ours' in capsys.readouterr().err
    for name in ('qemu', 'qemu.d/90-nova-vqos'):
        assert (tmp_path / name).read_text() == '#!/bin/sh\nexit 0\n'


def test_a_wrong_configuration_is_not_installed(tmp_path, capsys):
    config = tmp_path / 'hook.conf'
    config.write_text('[hook]\non_error = explode\n')
    assert libvirt.main(['--install', '--hooks-dir', str(tmp_path / 'hooks'),
                         '--config', str(config)]) == 1
    assert "on_error is 'explode'" in capsys.readouterr().err
    assert not (tmp_path / 'hooks').exists()


def test_install_where_it_cannot_be_written(tmp_path, capsys):
    (tmp_path / 'hooks').write_text('')
    assert libvirt.main(
        ['--install', '--hooks-dir', str(tmp_path / 'hooks')]) == 1
    assert capsys.readouterr().err.startswith('error: ')


@pytest.mark.parametrize('arguments', [[], ['--install', '--uninstall'],
                                       ['--nonsense']])
def test_usage(arguments, capsys):
    with pytest.raises(SystemExit):
        libvirt.main(arguments)
    assert 'usage: nova-vqos-libvirt-hook' in capsys.readouterr().err
