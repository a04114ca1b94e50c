# SPDX-License-Identifier: Apache-2.0
"""The agent's driver and its helper, with a socket between them."""

import os
import socket
import stat
import threading

import libvirt
import pytest

from nova_vqos import units
from nova_vqos.cmd import helper
from nova_vqos.hypervisor import base
from nova_vqos.hypervisor.libvirt import driver
from nova_vqos.hypervisor.libvirt import session as libvirt_session
from nova_vqos.hypervisor.libvirt.helper import client
from nova_vqos.hypervisor.libvirt.helper import server
from nova_vqos.tests.fixtures import fakes
from nova_vqos.tests.fixtures import recording_writer

UUID = fakes.UUID
CHANGES = [base.Change(base.Parameter.QUOTA_US, None),
           base.Change(base.Parameter.PERIOD_US, 50_000)]
CAP = units.CpuCap(20_000, 50_000)


@pytest.fixture
def target():
    return recording_writer.Recorder()


@pytest.fixture
def session():
    made = libvirt_session.Session('test:///default')
    yield made
    made.close()


@pytest.fixture
def answering(session, target):
    return server.HelperServer(session, target)


@pytest.fixture
def path(tmp_path, answering):
    """The socket of a helper that answers."""
    path = str(tmp_path / 'helper.sock')
    # What a helper that was killed left.
    helper.make_socket(path).close()
    with helper.make_socket(path) as listening:
        def serve():
            # It ends when the socket is shut down.
            with pytest.raises(OSError, match='Invalid argument'):
                answering.serve(listening)
        thread = threading.Thread(target=serve)
        thread.start()
        yield path
        listening.shutdown(socket.SHUT_RD)
        thread.join()


@pytest.fixture
def asking(path):
    return client.HelperClient(path, timeout_s=20)


@pytest.mark.parametrize('call', [
    ('check',),
    ('write', UUID, CHANGES),
    ('persist', UUID, CAP, 410),
    ('persist', UUID, None, 1024),
    ('pin', UUID, {0, 1, 2, 8}),
    ('place', UUID, {0: {1}, 3: {0, 5}}),
    ('restore_pins', UUID, [0, 2], {4, 5}),
])
def test_the_writer_gets_what_the_agent_asks_for(asking, target, call):
    method, *arguments = call
    getattr(asking, method)(*arguments)
    assert target.calls == [call]


@pytest.mark.parametrize('result', [True, False])
def test_the_agent_gets_the_result(asking, target, result):
    target.result = result
    assert asking.persist(UUID, CAP, 410) is result
    assert asking.place(UUID, {0: {1}}) is result


@pytest.mark.parametrize('kind', [
    base.DomainBusy, base.DomainGone, base.HypervisorError])
def test_the_agent_gets_the_error(asking, target, kind):
    target.result = kind('as libvirt says')
    with pytest.raises(base.HypervisorError, match='as libvirt says') as found:
        asking.pin(UUID, {0})
    assert type(found.value) is kind


def test_a_fault_of_the_helper_ends_one_request_alone(asking, target):
    target.result = ZeroDivisionError('a fault')
    with pytest.raises(base.HypervisorError):
        asking.pin(UUID, {0})
    target.result = None
    asking.check()


def test_its_user_and_group_can_ask(path):
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o660


def test_it_says_where_it_cannot_listen(tmp_path, capsys):
    config = tmp_path / 'nova-vqos.conf'
    config.write_text('[vqos_agent]\nhelper_path = /nowhere/helper.sock\n')
    assert helper.main(['--config-file', str(config), '--listen']) == 1
    assert '/nowhere/helper.sock' in capsys.readouterr().err


def test_without_a_helper_nothing_can_be_written(tmp_path):
    with pytest.raises(base.Unavailable):
        client.HelperClient(str(tmp_path / 'none')).check()


def test_a_helper_that_hangs_is_one_request_that_fails(tmp_path):
    path = str(tmp_path / 'helper.sock')
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(path)
        listening.listen()
        with pytest.raises(base.HypervisorError) as found:
            client.HelperClient(path, timeout_s=0.05).pin(UUID, {0})
    assert type(found.value) is base.HypervisorError


class TestDriver:
    """The agent's driver, where a helper writes for it."""

    @pytest.fixture
    def hypervisor(self, tmp_path, path):
        made = driver.LibvirtHypervisor('test:///default', root=str(tmp_path),
                                        helper_path=path)
        made.connect(lambda _event: None)
        yield made
        made.close()

    def test_it_reads_by_itself(self, hypervisor):
        (uuid,) = hypervisor.running()
        assert hypervisor.describe(uuid).name == 'test'

    def test_libvirt_refuses_what_it_changes(self, hypervisor):
        (uuid,) = hypervisor.running()
        domain = hypervisor._session.lookup(uuid)
        with pytest.raises(libvirt.libvirtError) as found:
            domain.pinVcpu(0, (True,))
        assert (found.value.get_error_code()
                == libvirt.VIR_ERR_OPERATION_DENIED)

    def test_the_helper_writes(self, hypervisor, target):
        hypervisor.write(UUID, CHANGES)
        hypervisor.persist(UUID, CAP, 410)
        hypervisor.pin(UUID, {1})
        hypervisor.place(UUID, {0: {1}})
        assert target.calls[1:] == [
            ('write', UUID, CHANGES), ('persist', UUID, CAP, 410),
            ('pin', UUID, {1}), ('place', UUID, {0: {1}})]

    def test_without_a_helper_it_is_not_connected(self, tmp_path):
        made = driver.LibvirtHypervisor('test:///default',
                                        root=str(tmp_path),
                                        helper_path=str(tmp_path / 'none'))
        with pytest.raises(base.Unavailable):
            made.connect(lambda _event: None)
        with pytest.raises(base.Unavailable):
            made.running()
