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

"""Which threads are in a cgroup."""

import os

#: The file of a cgroup that lists them, by the version of cgroups.
FILES = {1: 'tasks', 2: 'cgroup.threads'}

# More than the kernel lets one process have by default.
_MOST_BYTES = 1024 * 1024
_CHUNK_BYTES = 65536


def read(path: str) -> tuple[int, ...]:
    """The threads in a cgroup.

    :param path: of the file that lists them, see FILES
    :raises OSError: when the cgroup is gone
    :raises ValueError: when what the kernel says is no number
    """
    # NOTE: opened anew each time, since version 1 answers whoever keeps it
    # open from a list that may be a second old. The kernel gives a page at a
    # time.
    chunks = []
    size = 0
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        while size < _MOST_BYTES:
            chunk = os.read(handle, _CHUNK_BYTES)
            if not chunk:
                break
            chunks.append(chunk)
            size += len(chunk)
    finally:
        os.close(handle)
    content = b''.join(chunks)
    whole = content[:content.rfind(b'\n') + 1]
    # 0: a thread that this process cannot see.
    return tuple(filter(None, map(int, whole.split())))
