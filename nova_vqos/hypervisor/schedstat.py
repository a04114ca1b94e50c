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
"""How long a thread ran and waited, and how often it began to run."""

import typing as ty


class ThreadRun(ty.NamedTuple):
    """Counters of one thread since it began; none of them ever falls.

    :ivar run_ns: that it ran
    :ivar waited_ns: that it was ready and did not run; a cap that holds it
        back counts as well
    :ivar runs: how often it began to run. What it ran on average until
        somebody else did is the difference of ``run_ns`` by that of ``runs``.
    """

    run_ns: int
    waited_ns: int
    runs: int


def path(proc_path: str, tid: int) -> str:
    """The file of a thread.

    :param proc_path: where processes are looked for
    """
    return f'{proc_path}/{tid}/schedstat'


def parse(content: bytes) -> ThreadRun:
    """The content of that file.

    :raises ValueError: when it is not understood
    """
    run_ns, waited_ns, runs = map(int, content.split())
    return ThreadRun(run_ns, waited_ns, runs)
