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


"""Files that all may read, and nobody but their owner may write."""

import os
import stat
import typing as ty

from nova_vqos.profile import errors

MAX_FILE_BYTES = 4 * 1024 * 1024


def read(path: str) -> bytes:
    """Read the file of a profile, or of what is as critical.

    :raises ProfileMissing: when there is none
    :raises ProfileUnsafe: when others than root and the reader may write it
    :raises ProfileInvalid: when it cannot be read, or is too large
    """
    try:
        with open(path, 'rb') as file:
            _check_safe(path, os.fstat(file.fileno()))
            content = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError as error:
        raise errors.ProfileMissing(
            f'{path} does not exist: run nova-vqos-calibrate cpu') from error
    except OSError as error:
        raise errors.ProfileInvalid(
            f'{path} cannot be read: {error}') from error
    if len(content) > MAX_FILE_BYTES:
        raise errors.ProfileInvalid(
            f'{path} has more than {MAX_FILE_BYTES} bytes')
    return content


def write(text: str, path: str,
          check: ty.Callable[[str], None] | None = None) -> None:
    """Write a file that all may read, whole or not at all.

    :param check: is given the path of the file before it gets its name, and
        keeps it from that by raising
    :raises OSError: when it cannot be written; an old one is then untouched
    """
    import tempfile
    directory = os.path.dirname(os.path.abspath(path))
    os.makedirs(directory, mode=0o755, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=directory, prefix='.profile-')
    try:
        with os.fdopen(handle, 'w') as file:
            file.write(text)
            file.flush()
            os.fchmod(file.fileno(), 0o644)
            os.fsync(file.fileno())
        if check is not None:
            check(temporary)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _check_safe(path: str, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise errors.ProfileUnsafe(f'{path} is not a regular file')
    if status.st_mode & 0o022:
        raise errors.ProfileUnsafe(
            f'{path} has mode {stat.S_IMODE(status.st_mode):04o}, others '
            'than its owner may write it: chmod go-w')
    if status.st_uid not in (0, os.geteuid()):
        raise errors.ProfileUnsafe(
            f'{path} belongs to user {status.st_uid}, it must belong to root '
            f'or to its reader, {os.geteuid()}')
