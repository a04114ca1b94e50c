# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.


"""What a guest boots into: busybox, tools and an init script."""

from collections.abc import Iterable, Mapping
import os
import re
import subprocess
import tempfile

from nova_vqos.guest import cpio
from nova_vqos.guest import programs
from nova_vqos.guest import work

# Files that measuring guests find in /.
_WORKLOADS = ('text', 'nbody.lua', 'chase.lua')


def build_initramfs(path: str, tools: Iterable[str] = ('sysbench',),
                    init: str | None = None,
                    files: Mapping[str, str] | None = None,
                    contents: Mapping[str, bytes] | None = None) -> None:
    """Write an initramfs of busybox, tools and an init script.

    Always the same bytes for the same content, and whole or not at all.

    :param path: where to
    :param tools: programs of this host, by name or path; the libraries that
        they need are added
    :param init: text of the script that is PID 1; None: the measuring one
    :param files: further files, path in the guest to path on this host
    :param contents: and others, path in the guest to content
    :raises GuestError: when a program or library is missing
    """
    busybox = programs.which('busybox')
    if _libraries(busybox):
        raise programs.GuestError(
            f'{busybox} is not static: install the package busybox-static')
    archive = cpio.Cpio()
    for directory in ('proc', 'sys', 'dev', 'tmp', 'root', 'run'):
        archive.add_directory(f'/{directory}')
    # The kernel opens it for init before there is a devtmpfs.
    archive.add_device('/dev/console', 5, 1)
    for applet in programs.run([busybox, '--list']).split():
        archive.add_link(f'/bin/{applet}', 'busybox')
    # After the links: busybox lists itself too.
    archive.add_file('/bin/busybox', busybox)
    for tool in tools:
        program = programs.which(tool)
        archive.add_file(f'/bin/{os.path.basename(program)}', program)
        for library in _libraries(program):
            archive.add_file(library, library)
    for guest_path, host_path in (files or {}).items():
        archive.add_file(guest_path, host_path)
    contents = dict(contents or {})
    if init is None:
        init = work.measuring_init()
        contents = {name: work.workload(name)
                    for name in _WORKLOADS} | contents
    for guest_path, content in contents.items():
        archive.add_bytes(guest_path, content, 0o644)
    archive.add_bytes('/init', init.encode(), 0o755)
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    handle, temporary = tempfile.mkstemp(
        dir=os.path.dirname(os.path.abspath(path)))
    try:
        with os.fdopen(handle, 'wb') as file:
            file.write(archive.to_bytes())
            os.fchmod(file.fileno(), 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _libraries(program: str) -> list[str]:
    """The libraries and the loader that a program needs, as paths."""
    done = subprocess.run(['ldd', program], capture_output=True, text=True,
                          timeout=programs.TIMEOUT_S, check=False)
    if done.returncode:
        # What ldd says of a static program, in any language.
        return []
    missing = re.findall(r'(\S+) => not found', done.stdout)
    if missing:
        raise programs.GuestError(f'{program} lacks {", ".join(missing)}')
    return re.findall(r'(?:=> |^\s*)(/\S+)', done.stdout, re.MULTILINE)
