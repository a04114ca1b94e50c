# SPDX-License-Identifier: Apache-2.0
"""The devstack plugin, on services of each kind."""

import pathlib

import pytest

from nova_vqos.tests.functional import devstack_machine

machine = devstack_machine.machine
pytestmark = devstack_machine.MARKS


def test_all_in_one(machine):
    host = machine(NOVA_VQOS_RESERVED_CU=50, NOVA_VQOS_PERIOD_US=80000,
                   NOVA_FILTERS='')
    before = host.tree()
    stock_filters = devstack_machine.enabled_filters(
        host.options(host.nova_conf))
    host.record()

    host.devstack('stack')
    assert host.record() == [
        'install_package sysbench',
        f'setup_develop {devstack_machine.TOP}',
        'pip_install_gr osc-placement',
        'restart_service libvirtd',
        f'nova-vqos-calibrate cpu --output {host.profile} '
        '--reference devstack',
        f'nova-vqos-probe --config-file {host.agent_conf} '
        f'--record {host.root}/run/nova-vqos/quantum.json',
        f'run_process vqos-agent {host.root}/usr/local/bin/nova-vqos-agent '
        f'--config-file {host.agent_conf}  root']
    for path in (host.nova_conf, host.nova_cpu_conf):
        options = host.options(path)
        assert options.compute_driver == 'vqos.VqosLibvirtDriver'
        assert options.vqos.profile_path == str(host.profile)
        assert options.vqos.reserved_cu == 50
        assert options.vqos.period_us == 80000
        assert options.vqos.servers_without_units == 'allow'
    devstack_machine.check_filters(
        host, [*stock_filters, devstack_machine.FILTER])
    devstack_machine.check_weighers(
        host, [devstack_machine.ALL_WEIGHERS, devstack_machine.WEIGHERS])
    placement = host.options(host.placement_conf).placement
    assert placement.allocation_conflict_retry_count == 1
    devstack_machine.check_agent(host)
    devstack_machine.check_hook(host)
    # With what the hook keeps beside the profile.
    first = host.tree()
    assert host.link.resolve() == devstack_machine.TOP / 'nova/virt/vqos'
    tempest = host.tempest_conf.read_text()
    assert 'scheduler_enabled_filters = ComputeFilter,VqosFilter' in tempest
    assert 'units = 60\n' in tempest
    assert 'reference_score = ' in tempest

    # A second stack.sh, once on its own files, once on new ones.
    for mode in ('phases', 'stack'):
        pid = host.agent_pid()
        host.devstack(mode)
        assert host.tree() == first, mode
        # Measured once, libvirt restarted once, one agent.
        assert [line.split()[0] for line in host.record()] == [
            'install_package', 'setup_develop', 'pip_install_gr',
            'stop_process', 'nova-vqos-probe', 'run_process']
        assert host.agent_pid() not in (None, pid)

    host.devstack('unstack')
    assert host.agent_pid() is None
    assert host.tree() == first
    host.devstack('unstack')

    for _again in range(2):
        host.devstack('clean')
        devstack_machine.check_clean(host, before)
        assert host.record()[-1] == 'pip_uninstall nova_vqos'
        assert devstack_machine.enabled_filters(
            host.options(host.nova_conf)) == stock_filters


def test_nova_loads_the_driver_through_the_link(machine):
    host = machine(devstack_machine.SUBNODE, NOVA_VQOS_REFERENCE='here',
                   **devstack_machine.NO_AGENT)
    host.devstack('stack')
    # As nova-compute does: below nova.virt, by compute_driver.
    driver = host.options(host.nova_cpu_conf).compute_driver
    found, base = devstack_machine.run_python(
        'import importlib, sys\n'
        'from nova.virt import driver\n'
        f'module, _, name = "nova.virt.{driver}".rpartition(".")\n'
        'found = importlib.import_module(module)\n'
        'assert issubclass(getattr(found, name), driver.ComputeDriver)\n'
        'print(found.__file__, sys.modules["nova"].__path__[0])',
        PYTHONPATH=str(host.root / 'opt/stack/nova'))
    assert pathlib.Path(found).parent == host.link
    assert base == str(host.root / 'opt/stack/nova/nova')


def test_subnode(machine):
    controller = machine(devstack_machine.CONTROLLER)
    profile = controller.root / 'harness/profile.yaml'
    host = machine(devstack_machine.SUBNODE, NOVA_VQOS_AGAINST=profile)
    before = host.tree()
    host.devstack('stack')
    assert (f'nova-vqos-calibrate cpu --output {host.profile} '
            f'--against {profile}') in host.record()
    # No scheduler here: what nova.conf says of filters is as it was.
    assert 'available' not in host.nova_conf.read_text()
    assert devstack_machine.enabled_filters(
        host.options(host.nova_conf)) == ['ComputeFilter']
    assert host.options(host.nova_cpu_conf).compute_driver == (
        'vqos.VqosLibvirtDriver')
    devstack_machine.check_agent(host)
    devstack_machine.check_hook(host)
    first = host.tree()
    host.devstack('stack')
    assert host.tree() == first
    host.devstack('unstack')
    assert host.agent_pid() is None
    host.devstack('clean')
    devstack_machine.check_clean(host, before)


def test_controller_without_compute(machine):
    host = machine(devstack_machine.CONTROLLER)
    before = host.tree()
    host.record()
    host.devstack('stack')
    assert host.record() == [f'setup_develop {devstack_machine.TOP}']
    options = host.options(host.nova_conf)
    assert options.compute_driver == 'libvirt.LibvirtDriver'
    assert devstack_machine.FILTER in devstack_machine.enabled_filters(options)
    for path in (host.conf_dir, host.hook, host.link, host.nova_cpu_conf):
        assert not path.exists()
    host.devstack('clean')
    devstack_machine.check_clean(host, before)


def test_no_nova(machine):
    host = machine('keystone,mysql')
    before = host.tree()
    host.devstack('stack')
    assert host.record() == []
    assert host.tree() == before


@pytest.mark.parametrize(('enabled', 'available'), [
    ('ComputeFilter, SameHostFilter', ''),
    ('SameHostFilter,VqosFilter',
     f'{devstack_machine.ALL_FILTERS} {devstack_machine.FILTER_CLASS}'),
    ('ComputeFilter', 'nova.scheduler.filters.compute_filter.ComputeFilter'),
])
def test_filters_that_are_set_stay(machine, enabled, available):
    host = machine(devstack_machine.CONTROLLER, NOVA_FILTERS=enabled,
                   AVAILABLE_FILTERS=available)
    host.devstack('stack')
    names = enabled.replace(' ', '').split(',')
    devstack_machine.check_filters(host, [
        *(name for name in names if name != devstack_machine.FILTER),
        devstack_machine.FILTER])
    found = host.options(host.nova_conf).filter_scheduler.available_filters
    others = [name for name in available.split()
              if name != devstack_machine.FILTER_CLASS]
    assert found[:-1] == (others or [devstack_machine.ALL_FILTERS])
    host.devstack('clean')
    assert devstack_machine.enabled_filters(host.options(host.nova_conf)) == [
        name for name in names if name != devstack_machine.FILTER]


@pytest.mark.parametrize('used', [
    'nova.scheduler.weights.ram.RAMWeigher',
    f'{devstack_machine.WEIGHERS}, nova.scheduler.weights.cpu.CPUWeigher'])
def test_weighers_that_are_set_stay(machine, used):
    host = machine(devstack_machine.CONTROLLER, NOVA_WEIGHERS=used)
    host.devstack('stack')
    others = [name for name in used.split(', ')
              if name != devstack_machine.WEIGHERS]
    expected = (used.split(', ') if devstack_machine.WEIGHERS in used
                else [*others, devstack_machine.WEIGHERS])
    devstack_machine.check_weighers(host, expected)
    host.devstack('clean')
    assert host.options(
        host.nova_conf).filter_scheduler.weight_classes == others


def test_cells_without_a_bus_of_their_own(machine):
    host = machine(CELLSV2_SETUP='singleconductor')
    host.devstack('stack')
    options = host.options(host.agent_conf)
    assert options.transport_url == 'rabbit://u:p@127.0.0.1:1/'
    assert not host.nova_cpu_conf.exists()


def test_older_devstack_copies_the_file_late(machine):
    host = machine(NOVA_CPU_CONF_IS='late')
    host.devstack('stack')
    assert host.options(host.nova_cpu_conf).compute_driver == (
        'vqos.VqosLibvirtDriver')
    devstack_machine.check_agent(host)
    first = host.tree()
    host.devstack('stack')
    assert host.tree() == first
