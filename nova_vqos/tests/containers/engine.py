# SPDX-License-Identifier: Apache-2.0
"""podman, with a store of its own."""

import os
import resource

from nova_vqos_lab import process

PROGRAM = '/usr/bin/podman'
_LIMIT_S = 600
# podman raises these limits to at least so much for each container.
_LEAST_FILES = 1_048_576

# Where root may not raise limits, containers keep those of the machine.
_RUNTIME = """\
#!/bin/sh
previous=
for one in "$@"; do
    if [ "$previous" = --bundle ]; then
        /usr/bin/python3 -I -S -c '
import json, sys
with open(sys.argv[1]) as file:
    config = json.load(file)
config["process"].pop("rlimits", None)
with open(sys.argv[1], "w") as file:
    json.dump(config, file)' "$one/config.json"
    fi
    previous=$one
done
exec runc "$@"
"""


class Engine:
    """Runs podman, on the machine or on a host of the lab.

    :ivar options: of each command
    """

    def __init__(self, directory: str) -> None:
        """:param directory: of all that it keeps"""
        os.makedirs(directory, exist_ok=True)
        # NOTE: it refuses paths of more than some 100 characters.
        self.options = [f'--root={directory}/store',
                        f'--runroot={directory}/run',
                        '--cgroup-manager=cgroupfs']
        if not _may_raise_limits():
            path = os.path.join(directory, 'runtime')
            with open(path, 'w', encoding='ascii') as stream:
                stream.write(_RUNTIME)
            os.chmod(path, 0o755)
            self.options.append(f'--runtime={path}')

    @property
    def argv(self) -> list[str]:
        return [PROGRAM, *self.options]

    def run(self, *arguments: str, **options) -> str:
        """:returns: what it prints"""
        return process.run([*self.argv, *arguments], limit_s=_LIMIT_S,
                           **options).stdout

    def build(self, containerfile: str, target: str, tag: str,
              folder: str, **arguments: str) -> None:
        """Build an image; --isolation=chroot needs nothing of the kernel.

        :param folder: of what is copied; has wheels and pip.conf, too
        """
        self.run('build', '--quiet', '--isolation=chroot', '--network=host',
                 f'--file={containerfile}', f'--target={target}',
                 f'--tag=localhost/{tag}',
                 f'--volume={folder}/wheels:/wheels:ro',
                 f'--volume={folder}/pip.conf:/etc/pip.conf:ro',
                 *(f'--build-arg={name}={value}'
                   for name, value in arguments.items()), folder)


def _may_raise_limits() -> bool:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with open('/proc/self/status', encoding='ascii') as status:
        effective = next(int(line.split()[1], 16) for line in status
                         if line.startswith('CapEff:'))
    return hard >= _LEAST_FILES or bool(effective & 1 << 24)
