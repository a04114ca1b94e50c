# SPDX-License-Identifier: Apache-2.0
"""Ansible's role on a host of the lab, and the containers that it wrote."""

import json
import os
import re
import shlex

from nova_vqos.tests.fixtures import project
from nova_vqos_lab import process

IMAGE = 'localhost/nova-vqos-agent'
UNITS = '/etc/systemd/system'
_PLAYBOOK = project.TOP / 'deploy/ansible/site.yml'
_LIMIT_S = 300


class Role:
    """Applies the role; systemd does not run on the host, so we start it."""

    def __init__(self, host, folder, engine) -> None:
        self._host = host
        self._engine = engine
        self._bin = folder / 'ansible/bin'
        self._started = {}
        self._variables = {
            'ansible_connection': 'local',
            'ansible_python_interpreter': str(self._bin / 'python'),
            'nova_vqos_start': False, 'nova_vqos_image': IMAGE,
            'nova_vqos_engine': engine.argv[0].rpartition('/')[2],
            'nova_vqos_engine_options': engine.options,
            'nova_vqos_host': host.name,
            # Where nova-compute would have its state.
            'nova_vqos_compute_state': host.path('nova'),
            'nova_vqos_settings': {'vqos_agent': {
                'tick_interval_s': 0.25, 'heartbeat_interval_s': 0.5}},
        }

    def apply(self, action, **variables):
        """:returns: how many tasks have changed something"""
        inventory = self._host.path('inventory.json')
        with open(inventory, 'w', encoding='utf-8') as stream:
            json.dump({'compute': {'hosts': {self._host.name: {
                **self._variables, 'nova_vqos_action': action,
                **variables}}}}, stream)
        home = self._host.path('ansible')
        said = self._host.run(
            [str(self._bin / 'ansible-playbook'), '-i', inventory,
             str(_PLAYBOOK)], limit_s=_LIMIT_S, env={
                 'ANSIBLE_HOME': home, 'ANSIBLE_LOCAL_TEMP': home,
                 'ANSIBLE_REMOTE_TEMP': home, 'LC_ALL': 'C.UTF-8',
                 'ANSIBLE_BECOME': 'false', 'ANSIBLE_NOCOLOR': '1'}).stdout
        print(said)
        return int(re.search(r' changed=(\d+) ', said).group(1))

    def commands(self, name):
        """The commands of a unit, by its options."""
        text = self._host.run(['cat', f'{UNITS}/{name}.service']).stdout
        return {option: shlex.split(value.removeprefix('-'))
                for option, value in re.findall(r'^(Exec\w+)=(.*)$', text,
                                                re.M)}

    def start(self, name):
        """Start a container as systemd would."""
        commands = self.commands(name)
        self._host.run(commands['ExecStartPre'], check=False)
        self._started[name] = self._host.popen(commands['ExecStart'],
                                               log=name)
        return self._started[name]

    def once(self, name):
        """Run a container to its end.

        :returns: its exit status
        """
        return self._host.run(self.commands(name)['ExecStart'],
                              check=False).returncode

    def stop(self, name):
        """Stop a container as systemd would."""
        self._host.run(self.commands(name)['ExecStop'])
        assert self._started.pop(name).wait(30)

    def main_pid(self, name):
        """The pid of a container's program, as the machine sees it."""
        inner = process.wait_until(
            lambda: self._host.run(
                [*self._engine.argv, 'inspect', '--format={{.State.Pid}}',
                 name], check=False).stdout.strip(), 30, name)
        for entry in os.listdir('/proc'):
            if entry.isdigit() and self._is(entry, inner):
                return int(entry)
        raise process.LabError(f'{name} has no process {inner}')

    def _is(self, pid, inner):
        """Whether a process of the machine is one of the host's."""
        try:
            same = (os.readlink(f'/proc/{pid}/ns/pid') == os.readlink(
                f'/proc/{self._pid1}/ns/pid'))
            return same and status(pid)['NSpid'][-1] == inner
        except OSError:
            return False

    @property
    def _pid1(self):
        return process.Process.load(self._host.path('init.pid')).pid


def status(pid):
    """:returns: /proc/PID/status, words by name"""
    with open(f'/proc/{pid}/status', encoding='ascii') as stream:
        return {name: words.split() for name, _, words in (
            line.partition(':') for line in stream)}
