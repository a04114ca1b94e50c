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

"""What people's bills are made of: notifications of what servers used.

One for each server and interval. Kept apart from the ledger: that says what
a server used in its whole life, which each notification repeats, so that one
that was lost costs nobody anything.
"""

from collections.abc import Callable, Mapping
import dataclasses
import datetime
import typing as ty

from nova_vqos.billing import account as accounts
from nova_vqos.billing import meter

#: Of the payload. A new field is a new minor version, anything else a major.
VERSION = '1.0'


@dataclasses.dataclass(slots=True)
class _Interval:
    """What a server used since the last notification of it.

    :ivar read_utc_s: when it was billed last
    """

    began_utc_s: float
    began_s: float
    read_utc_s: float
    read_s: float
    used_cu_us: dict[str, int] = dataclasses.field(
        default_factory=accounts.nothing)
    throttled_ns: int = 0


class Notices:
    """Makes the payloads of a host's servers."""

    def __init__(self, host: str, interval_s: float, *,
                 clock: Callable[[], float],
                 utc: Callable[[], float]) -> None:
        """
        :param interval_s: from one to the next; 0: none are made
        :param clock: monotonic, in seconds
        :param utc: in seconds since 1970
        """
        self._host = host
        self._interval_s = interval_s
        self._clock = clock
        self._utc = utc
        self._intervals: dict[str, _Interval] = {}

    def add(self, uuid: str, used_cu_us: Mapping[str, int],
            throttled_ns: int, report: Mapping[str, ty.Any],
            length_s: float = 0.0) -> dict[str, ty.Any] | None:
        """Take in what a server used.

        :param report: of the biller
        :param length_s: in which it was used: more than one round where the
            agent was away
        :returns: the payload of a notification that is due; None: none is
        """
        if not self._interval_s:
            return None
        now_s, utc_s = self._clock(), self._utc()
        interval = self._intervals.get(uuid)
        if interval is None:
            interval = self._intervals[uuid] = _Interval(
                utc_s - length_s, now_s - length_s, utc_s, now_s)
        interval.read_utc_s, interval.read_s = utc_s, now_s
        for name in meter.COMPONENTS:
            interval.used_cu_us[name] += used_cu_us[name]
        interval.throttled_ns += throttled_ns
        if now_s < interval.began_s + self._interval_s:
            return None
        self._intervals[uuid] = _Interval(utc_s, now_s, utc_s, now_s)
        return self.payload(report) | self._usage(interval, report)

    def end(self, uuid: str, report: Mapping[str, ty.Any]
            ) -> dict[str, ty.Any] | None:
        """The last of a server that is not billed here any more."""
        interval = self._intervals.pop(uuid, None)
        if interval is None or not any(interval.used_cu_us.values()):
            return None
        return self.payload(report) | self._usage(interval, report)

    def payload(self, report: Mapping[str, ty.Any]) -> dict[str, ty.Any]:
        """What all notifications say of a server."""
        return {
            'payload_version': VERSION, 'host': self._host,
            'at': _iso(self._utc()),
            **{name: report[name] for name in (
                'server_uuid', 'project_id', 'billing', 'entitlement_cu',
                'limit_cu', 'debt_cu_s', 'written_off_cu_s', 'overdrawn',
                'not_modelled')},
            'total_cu_s': dict(report['used_cu_s'])}

    @staticmethod
    def _usage(interval: _Interval, report: Mapping[str, ty.Any]
               ) -> dict[str, ty.Any]:
        length_s = interval.read_s - interval.began_s
        entitlement_cu = report['entitlement_cu']
        return {
            'from': _iso(interval.began_utc_s),
            'to': _iso(interval.read_utc_s),
            'length_s': round(length_s, 3),
            'used_cu_s': {
                name: accounts.cu_s(used)
                for name, used in interval.used_cu_us.items()},
            'entitled_cu_s': (None if entitlement_cu is None
                              else round(entitlement_cu * length_s, 3)),
            'throttled_s': interval.throttled_ns / 1e9}


def _iso(utc_s: float) -> str:
    return datetime.datetime.fromtimestamp(utc_s, datetime.UTC).isoformat(
        timespec='milliseconds')
