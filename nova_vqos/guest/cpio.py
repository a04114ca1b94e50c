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


"""Archives in the format of an initramfs."""

import os
import stat


class Cpio:
    """An archive in the kernel's initramfs format, "newc".

    See driver-api/early-userspace/buffer-format of its documentation.
    """

    def __init__(self) -> None:
        self._entries: dict[str, tuple[int, bytes, tuple[int, int]]] = {}

    def add_directory(self, path: str) -> None:
        self._add(path, stat.S_IFDIR | 0o755, b'')

    def add_device(self, path: str, major: int, minor: int) -> None:
        self._add(path, stat.S_IFCHR | 0o600, b'', (major, minor))

    def add_link(self, path: str, target: str) -> None:
        self._add(path, stat.S_IFLNK | 0o777, target.encode())

    def add_bytes(self, path: str, content: bytes, mode: int) -> None:
        self._add(path, stat.S_IFREG | mode, content)

    def add_file(self, path: str, source: str) -> None:
        mode = os.stat(source).st_mode
        with open(source, 'rb') as file:
            self.add_bytes(path, file.read(), 0o755 if mode & 0o111 else 0o644)

    def _add(self, path: str, mode: int, content: bytes,
             device: tuple[int, int] = (0, 0)) -> None:
        name = path.strip('/')
        parent = os.path.dirname(name)
        if parent and parent not in self._entries:
            self.add_directory(parent)
        self._entries[name] = (mode, content, device)

    def to_bytes(self) -> bytes:
        parts: list[bytes] = []
        entries = [*self._entries.items(), ('TRAILER!!!', (0, b'', (0, 0)))]
        for inode, (name, (mode, content, device)) in enumerate(entries, 1):
            encoded = name.encode() + b'\0'
            fields = (inode, mode, 0, 0, 1, 0, len(content), 0, 0, *device,
                      len(encoded), 0)
            header = b'070701' + b''.join(b'%08X' % field for field in fields)
            parts += [_pad(header + encoded), _pad(content)]
        return b''.join(parts)


def _pad(content: bytes) -> bytes:
    return content + b'\0' * (-len(content) % 4)
