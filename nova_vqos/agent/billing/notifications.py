# SPDX-License-Identifier: Apache-2.0
"""Notifications of the usage of servers, from which invoices are made.

One for each server and interval. Each repeats the total since the server's
first bill, so that a lost one loses nothing.
"""

from collections.abc import Callable, Mapping
import dataclasses
import typing as ty

from nova_vqos import primitives
from nova_vqos import utc as times
from nova_vqos.agent.messages import server_report
from nova_vqos.billing import account
from nova_vqos.billing import meter

#: Of the payload. A new field is a new minor version, anything else a major.
VERSION = '1.2'


@dataclasses.dataclass(slots=True)
class _Interval:
    """The usage of a server since its last notification.

    :ivar read_utc_s: of its latest bill
    :ivar peak_cu: highest mean use of four hours
    """

    began_utc_s: float
    began_s: float
    read_utc_s: float
    read_s: float
    used_cu_us: dict[str, int] = dataclasses.field(
        default_factory=account.nothing)
    throttled_ns: int = 0
    peak_cu: float = 0.0


class UsageNotifications:
    """Makes the payloads for a host's servers."""

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
            throttled_ns: int, report: server_report.Bill,
            length_s: float = 0.0) -> dict[str, ty.Any] | None:
        """Add the usage of a server.

        :param report: its bill
        :param length_s: of the usage: more than one billing interval where
            the agent did not run
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
        if report.rolling_4h is not None:
            interval.peak_cu = max(interval.peak_cu, report.rolling_4h.cu)
        if now_s < interval.began_s + self._interval_s:
            return None
        self._intervals[uuid] = _Interval(utc_s, now_s, utc_s, now_s)
        return self.payload(report) | self._usage(interval, report)

    def end(self, uuid: str, report: server_report.Bill | None
            ) -> dict[str, ty.Any] | None:
        """Make the last payload of a server that is billed here no more."""
        interval = self._intervals.pop(uuid, None)
        if interval is None or report is None or not any(
                interval.used_cu_us.values()):
            return None
        return self.payload(report) | self._usage(interval, report)

    def payload(self, report: server_report.Bill) -> dict[str, ty.Any]:
        """Make the part of a payload that all notifications have."""
        return {
            'payload_version': VERSION, 'host': self._host,
            'at': times.text(self._utc(), 'milliseconds'),
            **{name: primitives.to_primitives(getattr(report, name))
               for name in (
                   'server_uuid', 'project_id', 'billing', 'entitlement_cu',
                   'limit_cu', 'debt_cu_s', 'written_off_cu_s', 'saved_cu_s',
                   'overdrawn', 'not_modelled')},
            'total_cu_s': dict(report.used_cu_s)}

    @staticmethod
    def _usage(interval: _Interval, report: server_report.Bill
               ) -> dict[str, ty.Any]:
        length_s = interval.read_s - interval.began_s
        entitlement_cu = report.entitlement_cu
        return {
            'from': times.text(interval.began_utc_s, 'milliseconds'),
            'to': times.text(interval.read_utc_s, 'milliseconds'),
            'length_s': round(length_s, 3),
            'used_cu_s': {
                name: account.cu_s(used)
                for name, used in interval.used_cu_us.items()},
            'entitled_cu_s': (None if entitlement_cu is None
                              else round(entitlement_cu * length_s, 3)),
            'throttled_s': interval.throttled_ns / 1e9,
            'rolling_4h': None if report.rolling_4h is None else {
                'cu': round(report.rolling_4h.cu, 3),
                'peak_cu': round(interval.peak_cu, 3),
                'covered_s': round(report.rolling_4h.covered_s, 3)},
            'emulator_memory_bytes': None}
