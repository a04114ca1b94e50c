# SPDX-License-Identifier: Apache-2.0
"""SSH between the hosts: by it, Nova carries disks in cold migrations.

One key serves all hosts, as theirs and as their users'. It is made with the
lab, opens nothing but its hosts, and goes with it.
"""

import os

from nova_vqos_lab import config
from nova_vqos_lab import host as hosts
from nova_vqos_lab import paths
from nova_vqos_lab import process

SSHD = '/usr/sbin/sshd'
# On each host; a directory of its own is mounted there.
_ETC = '/etc/ssh'
_KEY = f'{_ETC}/lab_key'
_LIMIT_S = 20

_SSHD_CONFIG = f"""\
HostKey {_KEY}
AuthorizedKeysFile {_ETC}/authorized_keys
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
PidFile none
Subsystem sftp internal-sftp
"""
_SSH_CONFIG = f"""\
IdentityFile {_KEY}
IdentitiesOnly yes
GlobalKnownHostsFile {_ETC}/known_hosts
UserKnownHostsFile /dev/null
"""


def make_key() -> None:
    """Make the lab's key, unless there is one."""
    if not os.path.exists(_lab_key()):
        process.run(['ssh-keygen', '-q', '-t', 'ed25519', '-N', '', '-C',
                     'lab', '-f', _lab_key()])


def start(host: hosts.Host) -> None:
    """Let root of any host log in on a host; its sshd ends with the host.

    Unless that works.

    :raises process.LabError: when it does not work then
    """
    if _answers(host):
        return
    with open(_lab_key(), encoding='ascii') as stream:
        private = stream.read()
    with open(f'{_lab_key()}.pub', encoding='ascii') as stream:
        public = stream.read()
    names = ','.join(f'{name},{address}' for name, address
                     in paths.HOST_ADDRESSES.items())
    for name, text in {
            'lab_key': private, 'authorized_keys': public,
            'known_hosts': f'{names} {public}', 'sshd_config': _SSHD_CONFIG,
            'ssh_config': _SSH_CONFIG}.items():
        path = host.path(f'etc/ssh/{name}')
        config.write(path, text)
        os.chmod(path, 0o600)
    # Where it locks itself up; a boot of systemd makes it elsewhere.
    os.makedirs(host.path('run/sshd'), mode=0o755, exist_ok=True)
    running = host.popen([SSHD, '-D', '-e'])
    process.wait_until(
        lambda: _answers(host), _LIMIT_S, f'sshd of host {host.name}',
        log=running.log, alive=running.alive, interval_s=0.2)


def _answers(host: hosts.Host) -> bool:
    return host.run(['ssh', '-o', 'BatchMode=yes', host.address, 'true'],
                    check=False).returncode == 0


def _lab_key() -> str:
    return os.path.join(paths.data('ssh'), 'lab_key')
