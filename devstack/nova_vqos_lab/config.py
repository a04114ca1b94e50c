# SPDX-License-Identifier: Apache-2.0
"""The files that the controller's and the computes' services read.

The lab's network exists only inside its namespaces and holds throw-away data,
so that one password for everything is enough.
"""

from collections.abc import Mapping, Sequence
import os
import shutil
import sys
import sysconfig

from nova_vqos import units
from nova_vqos_lab import counting
from nova_vqos_lab import paths
from nova_vqos_lab import process

PASSWORD = 'vqos-lab'
REGION = 'lab'

CONTROLLER = paths.CONTROLLER_ADDRESS
PORTS = {
    'keystone': 5000, 'placement': 8778, 'glance': 9292, 'nova': 8774,
    'neutron': 9696, 'metadata': 8775, 'vendordata': 8797,
    'watcher': 9322,
}
DATABASES = ('keystone', 'placement', 'glance', 'nova_api', 'nova_cell0',
             'nova', 'watcher')
MYSQL_PORT = 3306
AMQP_PORT = 5672
# A guest under emulation takes up to a millisecond of CPU time to be at its
# speed again after each pause that its cap makes: 100 ms, the kernel's own
# default, halve what that costs against nova_vqos' default of 50.
_PERIOD_US = '100000'
# nova-compute's own directory on a host: at the same path on all of them,
# since a domain's XML names files below it and migrates with them.
STATE_PATH = paths.COMPUTE_STATE_PATH
_COMPUTE_STATE = f'{STATE_PATH}/vqos.json'

# The kernel's command line of a guest that does nothing, and says so much of
# its boot that there is something to read; see guest.command_line for the
# timer.
IDLE_GUEST = ('console=ttyS0 panic=-1 no_timer_check rdinit=/bin/busybox -- '
              'sleep 86400')

# As `tempest init` writes it: the tests of a class run in one worker.
STESTR_CONF = f"""\
[DEFAULT]
test_path={os.path.join(
    sysconfig.get_path('purelib'), 'tempest', 'test_discover')}
top_dir={sysconfig.get_path('purelib')}
group_regex=([^\\.]*\\.)*
"""

Section = Mapping[str, str | int | bool | Sequence[str]]
Settings = Mapping[str, Section]


def url(service: str) -> str:
    """:returns: where an API of the controller listens."""
    suffix = {'keystone': '/v3', 'nova': '/v2.1'}.get(service, '')
    return f'http://{CONTROLLER}:{PORTS[service]}{suffix}'


def database_url(name: str) -> str:
    """:returns: SQLAlchemy's URL of one of DATABASES."""
    return (f'mysql+pymysql://root:{PASSWORD}@{CONTROLLER}:{MYSQL_PORT}/'
            f'{name}?charset=utf8mb4')


def transport_url() -> str:
    """:returns: oslo.messaging's URL of the bus."""
    return f'rabbit://nova:{PASSWORD}@{CONTROLLER}:{AMQP_PORT}/'


def merge(*parts: Settings) -> Settings:
    """Lay settings over each other, the later ones winning."""
    merged: dict[str, dict] = {}
    for part in parts:
        for section, options in part.items():
            merged.setdefault(section, {}).update(options)
    return merged


def write_ini(path: str, settings: Settings) -> None:
    """Write an oslo.config file; an option with a list is repeated."""
    lines = []
    for section, options in settings.items():
        lines.append(f'[{section}]')
        for name, value in options.items():
            values = [value] if isinstance(value, (str, int)) else value
            lines += [f'{name} = {one}' for one in values]
        lines.append('')
    write(path, '\n'.join(lines))


def write(path: str, text: str) -> None:
    """Write a file below the lab's directory, making its directory."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, 'w', encoding='utf-8') as stream:
        stream.write(text)


def credentials(user: str) -> Section:
    """:returns: how a service logs into Keystone."""
    return {
        'auth_type': 'password', 'auth_url': url('keystone'),
        'username': user, 'password': PASSWORD, 'project_name': 'service',
        'user_domain_id': 'default', 'project_domain_id': 'default',
        'region_name': REGION,
    }


def auth_token(user: str) -> Section:
    """:returns: how an API checks the tokens that it is sent."""
    return {
        **credentials(user), 'www_authenticate_uri': url('keystone'),
        'service_token_roles': 'service',
        'service_token_roles_required': True,
    }


def _database(name: str) -> Section:
    return {'connection': database_url(name)}


def _log(name: str) -> Section:
    return {'log_file': paths.log(name), 'debug': False}


def keystone() -> Settings:
    """:returns: keystone.conf."""
    etc = paths.etc('keystone')
    return {
        'DEFAULT': _log('keystone'),
        'database': _database('keystone'),
        'token': {'provider': 'fernet', 'expiration': 86400},
        'fernet_tokens': {'key_repository': f'{etc}/fernet-keys'},
        'fernet_receipts': {'key_repository': f'{etc}/fernet-keys'},
        'credential': {'key_repository': f'{etc}/credential-keys'},
        # A cheap hash: each service logs in when it starts.
        'identity': {'password_hash_rounds': 4},
    }


def placement() -> Settings:
    """:returns: placement.conf."""
    return {
        'DEFAULT': _log('placement'),
        'api': {'auth_strategy': 'keystone'},
        # NOTE: with more, concurrent boots are sold more than a host has.
        'placement': {'allocation_conflict_retry_count': 1},
        'placement_database': _database('placement'),
        'keystone_authtoken': auth_token('placement'),
    }


def glance() -> Settings:
    """:returns: glance-api.conf."""
    return {
        'DEFAULT': {
            **_log('glance'), 'enabled_backends': 'files:file',
            'public_endpoint': url('glance'),
            'enabled_import_methods': '[]',
        },
        'database': _database('glance'),
        'glance_store': {'default_backend': 'files'},
        'files': {'filesystem_store_datadir': paths.data('glance')},
        'os_glance_staging_store': {
            'filesystem_store_datadir': paths.data('glance-staging')},
        'os_glance_tasks_store': {
            'filesystem_store_datadir': paths.data('glance-tasks')},
        'keystone_authtoken': auth_token('glance'),
        'paste_deploy': {
            'flavor': 'keystone',
            'config_file': os.path.join(
                sys.prefix, 'etc', 'glance', 'glance-api-paste.ini'),
        },
        'oslo_policy': {'enforce_new_defaults': True},
    }


def _nova(name: str) -> Settings:
    """:returns: what all of Nova's services have in common."""
    return {
        'DEFAULT': {**_log(name), 'transport_url': transport_url(),
                    'rpc_response_timeout': 30,
                    'graceful_shutdown_timeout': 5,
                    # Of two hosts, one may have no room, or be too slow.
                    'allow_resize_to_same_host': True},
        'keystone_authtoken': auth_token('nova'),
        'service_user': {**credentials('nova'),
                         'send_service_user_token': True},
        'placement': credentials('placement'),
        'glance': {**credentials('glance'),
                   'endpoint_override': url('glance')},
        # NOTE: answers empty lists, see neutron_stub.py.
        'neutron': {**credentials('neutron'),
                    'endpoint_override': url('neutron')},
        'vnc': {'enabled': False},
        'notifications': {'notification_format': 'unversioned'},
        'oslo_messaging_notifications': {'driver': 'noop'},
    }


def nova_controller(name: str) -> Settings:
    """Nova's API, conductor and scheduler.

    :param name: of the service, and of its log
    """
    return merge(_nova(name), {
        'DEFAULT': {'host': 'controller', 'my_ip': CONTROLLER,
                    'state_path': paths.data('nova'),
                    # Up to a minute, before hosts are discovered.
                    'periodic_fuzzy_delay': 0},
        'api_database': _database('nova_api'),
        'database': _database('nova'),
        'api': {'auth_strategy': 'keystone'},
        'oslo_concurrency': {'lock_path': paths.data('nova-locks')},
        'conductor': {'workers': 1},
        'scheduler': {'workers': 1, 'discover_hosts_in_cells_interval': 3},
        'filter_scheduler': {'track_instance_changes': False},
        # What limits servers is to be what hosts have.
        'quota': {'instances': -1, 'cores': -1, 'ram': -1},
    })


def metadata(secret: str) -> Settings:
    """Nova's metadata service, which asks nova-vqos-vendordata.

    :param secret: by which proxies sign which server asks
    """
    return merge(nova_controller('nova-metadata'), {
        'neutron': {'service_metadata_proxy': True,
                    'metadata_proxy_shared_secret': secret},
        'api': {
            'vendordata_providers': 'StaticJSON,DynamicJSON',
            'vendordata_dynamic_targets': f'vqos@{url("vendordata")}/'},
        'vendordata_dynamic_auth': {'auth_section': 'service_user'},
    })


def vendordata() -> Settings:
    """:returns: the settings of nova-vqos-vendordata on the controller"""
    return {
        'DEFAULT': {'transport_url': transport_url(),
                    'log_file': paths.log('nova-vqos-vendordata')},
        'keystone_authtoken': auth_token('vqos'),
        'vqos_vendordata': {'listen_address': CONTROLLER,
                            'listen_port': PORTS['vendordata'],
                            # What a guest reads is seldom of another sample
                            # than what its administrator reads then.
                            'keep_s': 2},
    }


def unified_limits() -> Settings:
    """:returns: what has Nova take its quotas from Keystone"""
    return {
        'quota': {'driver': 'nova.quota.UnifiedLimitsDriver'},
        'oslo_limit': {
            'auth_type': 'password', 'auth_url': url('keystone'),
            'username': 'nova', 'password': PASSWORD,
            'user_domain_id': 'default', 'system_scope': 'all',
            'endpoint_service_type': 'compute',
            'endpoint_region_name': REGION},
    }


def scheduler_with_units(servers_without_units: str) -> Settings:
    """:returns: what an operator adds to nova-scheduler's settings."""
    return {'vqos': {
        'servers_without_units': servers_without_units,
    }, 'filter_scheduler': {
        'available_filters': [
            'nova.scheduler.filters.all_filters',
            'nova_vqos.scheduler.filter.VqosFilter',
        ],
        'enabled_filters': ','.join((
            'ComputeFilter', 'ComputeCapabilitiesFilter',
            'ImagePropertiesFilter', 'ServerGroupAntiAffinityFilter',
            'ServerGroupAffinityFilter', 'VqosFilter')),
        'weight_classes': ','.join((
            'nova.scheduler.weights.all_weighers',
            'nova_vqos.scheduler.weigher.all_weighers')),
    }}


def nova_compute(host: str, address: str, pcpus: str) -> Settings:
    """nova-compute with Nova's own libvirt driver.

    :param host: its name
    :param address: its address in the lab's network
    :param pcpus: the pCPUs that its servers share, as cpu_shared_set
    """
    name = f'nova-compute-{host}'
    helper = os.path.join(sys.prefix, 'bin', 'privsep-helper')
    return merge(_nova(name), {
        'DEFAULT': {
            'host': host, 'my_ip': address, 'state_path': STATE_PATH,
            'compute_driver': 'libvirt.LibvirtDriver',
            'reserved_host_memory_mb': 256, 'report_interval': 5,
            # One pCPU a host: what limits servers is to be their units.
            'cpu_allocation_ratio': '16.0',
            # The lab's guests do not know ACPI's button.
            'shutdown_timeout': 3,
            'update_resources_interval': 15,
            'force_raw_images': False,
        },
        'compute': {'cpu_shared_set': pcpus},
        'libvirt': {
            'virt_type': 'qemu', 'cpu_mode': 'custom', 'cpu_models': 'qemu64',
            'live_migration_scheme': 'tcp',
            'live_migration_inbound_addr': address,
            # A small guest on a slow emulator: rather a pause of a second
            # than many rounds of copying.
            'live_migration_downtime': 3000,
            'live_migration_downtime_steps': 3,
            'live_migration_downtime_delay': 3,
            'live_migration_completion_timeout': 100,
            # As with the button: they never end by themselves.
            'wait_soft_reboot_seconds': 3,
        },
        # The lab runs as root and need not become it: no sudo, no rootwrap.
        'nova_sys_admin': {'helper_command': helper},
        'privsep_osbrick': {'helper_command': helper},
        'vif_plug_linux_bridge_privileged': {'helper_command': helper},
        'vif_plug_ovs_privileged': {'helper_command': helper},
        # A kernel and a ramdisk are no disk images: deep inspection refuses
        # them where a destination fetches them again.
        'workarounds': {'disable_deep_image_inspection': True,
                        'disable_rootwrap': True},
        'oslo_concurrency': {'lock_path': f'{STATE_PATH}/locks'},
    })


def period_us() -> int:
    """:returns: the CFS period of all caps

    :raises LabError: when the one that was asked for cannot be
    """
    text = os.environ.get('NOVA_VQOS_LAB_PERIOD_US', _PERIOD_US)
    least, most = units.MIN_PERIOD_US, units.MAX_PERIOD_US
    if not (text.isdecimal() and least <= int(text) <= most):
        raise process.LabError(
            f'NOVA_VQOS_LAB_PERIOD_US is {text!r}, it must be microseconds '
            f'from {least} to {most}')
    return int(text)


def agent(host: str, address: str, profile_max_interval: float) -> Settings:
    """The settings of the agent on a host.

    :param host: its name
    :param address: its address in the lab's network
    :param profile_max_interval: as nova-compute's
    """
    return {
        'DEFAULT': {
            'host': host, 'transport_url': transport_url(),
            'log_file': paths.log(f'nova-vqos-agent-{host}')},
        'vqos': {'compute_state_path': _COMPUTE_STATE,
                 'profile_max_interval': str(profile_max_interval),
                 'period_us': str(period_us())},
        # For a Prometheus on the controller.
        'vqos_agent': {'metrics_address': address,
                       'instructions_path': counting.DIRECTORY},
    }


def hook() -> Settings:
    """The settings of libvirt's hook on a host."""
    return {'hook': {'period_us': str(period_us())}}


def manage() -> Settings:
    """:returns: what nova-vqos-manage reads, run beside the controller."""
    return {'DEFAULT': {'transport_url': transport_url()},
            # The lab's machine may stand still for seconds.
            'vqos_manage': {'timeout_s': '6'}}


def compute_with_units(allocation_ratio: float, profile_max_interval: float,
                       servers_without_units: str) -> Settings:
    """:returns: what an operator adds to nova-compute's settings."""
    return {
        'DEFAULT': {'compute_driver': 'vqos.VqosLibvirtDriver'},
        'vqos': {'allocation_ratio': str(allocation_ratio),
                 'servers_without_units': servers_without_units,
                 'profile_max_interval': str(profile_max_interval),
                 'compute_state_path': _COMPUTE_STATE,
                 'period_us': str(period_us())},
    }


def write_controller() -> None:
    """Write what the controller's services read, with stock Nova."""
    write_ini(f'{paths.etc("keystone")}/keystone.conf', keystone())
    write_ini(f'{paths.etc("placement")}/placement.conf', placement())
    write_ini(f'{paths.etc("glance")}/glance-api.conf', glance())
    for name in ('nova-api', 'nova-conductor', 'nova-scheduler'):
        write_ini(f'{paths.etc(name)}/nova.conf', nova_controller(name))
    copy_paste_ini('nova-api')
    for name in ('glance', 'nova', 'nova-locks'):
        os.makedirs(paths.data(name), exist_ok=True)
    write(paths.OPENRC, ''.join(
        f'export {name}={value}\n' for name, value in openrc().items()))


def copy_paste_ini(name: str) -> None:
    """Give one of Nova's APIs the description of its parts."""
    shutil.copy(os.path.join(sys.prefix, 'etc', 'nova', 'api-paste.ini'),
                paths.etc(name))


def openrc() -> dict[str, str]:
    """:returns: the environment of OpenStack's clients, and of ours."""
    return {
        'OS_AUTH_URL': url('keystone'), 'OS_USERNAME': 'admin',
        'OS_PASSWORD': PASSWORD, 'OS_PROJECT_NAME': 'admin',
        'OS_USER_DOMAIN_ID': 'default', 'OS_PROJECT_DOMAIN_ID': 'default',
        'OS_REGION_NAME': REGION, 'OS_IDENTITY_API_VERSION': '3',
        # Where `tempest run` looks for its configuration.
        'TEMPEST_CONFIG_DIR': paths.TEMPEST,
        'NOVA_VQOS_CONFIG_FILE': paths.MANAGE_CONF,
    }


def tempest(image: str, work_image: str, flavor: str, **options: object
            ) -> Settings:
    """The lab's configuration of the project's own tempest tests.

    :param image: id of an image whose guest does nothing
    :param work_image: id of one whose guest measures itself
    :param flavor: id of a flavor
    :param options: of the group nova_vqos
    """
    return merge(_tempest(image, flavor, flavor), {
        'compute-feature-enabled': {'resize': True},
        'nova_vqos': {
            'work_image_ref': work_image,
            **{name: str(value) for name, value in options.items()}},
    })


def tempest_upstream(image: str, flavor: str, other_flavor: str) -> Settings:
    """The lab's configuration of tempest's own tests.

    :param image: id of an image whose guest does nothing
    :param flavor: id of a flavor
    :param other_flavor: of another one
    """
    return merge(_tempest(image, flavor, other_flavor), {
        # Most of them ask whether there is one. What they do with it beyond
        # that fails: see neutron_stub.py.
        'service_available': {'neutron': True},
        'compute-feature-enabled': {
            'resize': True, 'cold_migration': True,
            'live_migrate_paused_instances': True,
            # These need Neutron, Cinder, or what makes CD images.
            'metadata_service': False, 'config_drive': False,
            'attach_encrypted_volume': False, 'swap_volume': False,
            'vnc_console': False, 'spice_console': False,
            'interface_attach': False, 'personality': False,
        },
    })


def _tempest(image: str, flavor: str, other_flavor: str) -> Settings:
    """:returns: the lab's configuration of all tempest tests"""
    return {
        'DEFAULT': {'log_file': paths.log('tempest')},
        'oslo_concurrency': {
            'lock_path': os.path.join(paths.TEMPEST, 'locks')},
        'auth': {
            'admin_username': 'admin', 'admin_password': PASSWORD,
            'admin_project_name': 'admin', 'admin_domain_name': 'Default',
            'use_dynamic_credentials': True, 'tempest_roles': 'member',
            'create_isolated_networks': False,
        },
        'identity': {'uri_v3': url('keystone'), 'region': REGION,
                     'auth_version': 'v3'},
        'service_available': {
            'nova': True, 'glance': True, 'neutron': False,
            'cinder': False, 'swift': False},
        'compute': {
            'image_ref': image, 'image_ref_alt': image, 'flavor_ref': flavor,
            'flavor_ref_alt': other_flavor, 'min_compute_nodes': 2,
            'min_microversion': '2.1', 'max_microversion': 'latest',
            'build_interval': 1, 'build_timeout': 180, 'region': REGION,
        },
        'compute-feature-enabled': {
            'live_migration': True, 'console_output': True,
            'block_migration_for_live_migration': True,
        },
        'placement': {'min_microversion': '1.0',
                      'max_microversion': 'latest', 'region': REGION},
        'image': {'region': REGION},
        'validation': {'run_validation': False},
    }


def write_scheduler(more: Settings) -> None:
    """Write nova-scheduler's settings with more laid over the stock ones."""
    write_ini(f'{paths.etc("nova-scheduler")}/nova.conf',
              merge(nova_controller('nova-scheduler'), more))
