# SPDX-License-Identifier: Apache-2.0
"""Reports on the agent: made whatever state it is in, and without secrets."""

import os
import re
import signal
import stat
import threading

from oslo_config import cfg
import oslo_messaging
import pytest

from nova_vqos.agent import diagnostics
from nova_vqos.agent import worker
from nova_vqos.conf import agent
from nova_vqos.conf import vqos
from nova_vqos.tests.fixtures import waits

HEADINGS = ('Package', 'Threads', 'Processes', 'Configuration', 'Host',
            'Servers')
HOST = {'connected': True, 'ticks': 7}
SERVERS = [{'server_uuid': 'u', 'entitled_cu': 60}]


@pytest.fixture
def conf(tmp_path):
    """That of an agent, with secrets wherever there can be one."""
    path = tmp_path / 'nova-vqos.conf'
    path.write_text(
        '[DEFAULT]\ntransport_url = rabbit://nova:s3cret@bus:5672/\n'
        '[oslo_messaging_notifications]\n'
        'transport_url = rabbit://nova:s3cret@bus:5672/other\n'
        'driver = messagingv2\n'
        '[oslo_messaging_rabbit]\nssl_key_file = /etc/ssl/key\n')
    conf = cfg.ConfigOpts()
    vqos.register_opts(conf)
    agent.register_opts(conf)
    agent.register_host_opts(conf)
    conf([], default_config_files=[str(path)], default_config_dirs=[])
    # These register options of their own.
    oslo_messaging.get_rpc_transport(conf)
    oslo_messaging.get_notification_transport(conf)
    return conf


def make(conf, host=lambda _limit_s: HOST, servers=lambda _limit_s: SERVERS):
    return diagnostics.Reports(conf, {'Host': host, 'Servers': servers})


@pytest.fixture
def directory(conf, tmp_path):
    """Where reports are to be written to."""
    directory = tmp_path / 'reports'
    directory.mkdir()
    make(conf)
    conf.set_override('log_dir', str(directory), 'oslo_reports')
    return directory


def test_it_says_all_and_no_secret(conf, capsys):
    make(conf).write()
    text = capsys.readouterr().err
    for heading in HEADINGS:
        assert re.search(rf'^====\s+{heading}\s+====$', text, re.M), heading
    assert '"ticks": 7' in text
    assert '"entitled_cu": 60' in text
    assert 'test_it_says_all_and_no_secret' in text
    assert 'tick_interval_s = 1.0' in text
    # Both URLs are there, and hidden.
    assert text.count('transport_url = ***') == 2
    assert 's3cret' not in text


def test_a_file_for_the_owner_alone(conf, directory, caplog):
    caplog.set_level('INFO')
    make(conf).write()
    (path,) = directory.iterdir()
    assert path.name.startswith('nova-vqos-agent_gurumeditation_2')
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert '"ticks": 7' in path.read_text()
    assert f'written to {path}' in caplog.text


def test_a_directory_that_it_cannot_write_to(conf, directory, capsys, caplog):
    directory.rmdir()
    make(conf).write()
    assert '"ticks": 7' in capsys.readouterr().err
    assert 'goes to stderr' in caplog.text


def test_a_loop_that_hangs(conf, capsys, monkeypatch):
    """It is bounded, and all else is reported."""
    monkeypatch.setattr(diagnostics, '_ANSWER_S', 0.05)
    held_up = worker.Mailbox()
    limits_s = []

    def ask(limit_s):
        limits_s.append(limit_s)
        return held_up.ask(dict, limit_s)
    make(conf, ask, ask).write()
    assert limits_s == [0.05] * 2
    text = capsys.readouterr().err
    assert text.count('did not answer') == 2
    assert 'tick_interval_s' in text


@pytest.mark.parametrize('broken', ['ThreadReportGenerator',
                                    'ProcessReportGenerator',
                                    'ConfigReportGenerator'])
def test_a_section_that_cannot_be_made(conf, capsys, monkeypatch, broken):
    """Such as the configuration, where an option is no good."""
    def fail(*_arguments):
        raise ValueError('no good')
    for module in (diagnostics.threads_section, diagnostics.process_section,
                   diagnostics.conf_section):
        if hasattr(module, broken):
            monkeypatch.setattr(getattr(module, broken), '__call__', fail)
    make(conf).write()
    text = capsys.readouterr().err
    assert 'Not available: ValueError: no good' in text
    assert '"ticks": 7' in text


@pytest.fixture
def started(conf, directory):
    handler = signal.getsignal(signal.SIGUSR2)
    started = make(conf)
    started.start()
    yield started
    started.stop()
    signal.signal(signal.SIGUSR2, handler)


def test_a_signal(started, directory):
    os.kill(os.getpid(), signal.SIGUSR2)
    waits.wait_until(lambda: list(directory.iterdir()))


@pytest.mark.causes_faults
def test_a_failed_report_is_repeated(started, directory, caplog, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(diagnostics, '_write_new', None)
        os.kill(os.getpid(), signal.SIGUSR2)
        waits.wait_until(lambda: 'No report on the agent' in caplog.text)
    os.kill(os.getpid(), signal.SIGUSR2)
    waits.wait_until(lambda: list(directory.iterdir()))


def test_a_file_to_look_at_that_is_not_there(conf, tmp_path, caplog):
    made = make(conf)
    conf.set_override('file_event_handler', str(tmp_path / 'none'),
                      'oslo_reports')
    made.start()
    made.stop()
    assert 'No report can be asked for' in caplog.text


def test_not_in_the_main_thread(conf, directory):
    """As the agents of a benchmark are: it takes no signal."""
    handler = signal.getsignal(signal.SIGUSR2)
    made = make(conf)
    starting = threading.Thread(target=made.start)
    starting.start()
    starting.join()
    made.stop()
    assert signal.getsignal(signal.SIGUSR2) is handler
