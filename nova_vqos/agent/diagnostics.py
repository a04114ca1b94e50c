# SPDX-License-Identifier: Apache-2.0
"""The agent's state as a text, on a signal: oslo.reports' Guru Meditation.

Made by a thread of its own, so that neither a loop that hangs nor a main
thread that waits keeps it from being made.
"""

from collections.abc import Callable, Mapping
import json
import logging
import os
import platform
import queue
import sys
import threading
import time
import typing as ty

from oslo_config import cfg
from oslo_reports import guru_meditation_report
from oslo_reports import opts as options
from oslo_reports import report
from oslo_reports.generators import conf as conf_section
from oslo_reports.generators import process as process_section
from oslo_reports.generators import threading as threads_section

from nova_vqos import primitives
from nova_vqos import version

LOG = logging.getLogger(__name__)

PROGRAM = 'nova-vqos-agent'

# How long the loop may take to answer: longer, and it hangs.
_ANSWER_S = 2.0

_Ask = Callable[[float], ty.Any]


class Reports:
    """Writes reports when it is asked to."""

    def __init__(self, conf: cfg.ConfigOpts, questions: Mapping[str, _Ask]
                 ) -> None:
        """Prepare; nothing is asked yet.

        :param conf: is given the options of oslo.reports
        :param questions: what gives the content of a section, by its heading:
            a message, within the seconds that it is given
        """
        options.set_defaults(conf)
        self._conf = conf
        self._questions = questions
        # NOTE: a SimpleQueue, since signal handlers put into it.
        self._asked: queue.SimpleQueue[bool] = queue.SimpleQueue()

    def start(self) -> None:
        """Take the signal SIGUSR2, or look at a file, as configured.

        A signal is taken in the main thread alone.
        """
        threading.Thread(target=self._run, name='reports',
                         daemon=True).start()
        asked = self._asked

        class Autorun(
                guru_meditation_report.TextGuruMeditation,  # type: ignore
        ):
            @classmethod
            def handle_signal(cls, *_arguments: ty.Any) -> None:
                asked.put(True)
        try:
            Autorun.setup_autorun(
                None, conf=self._conf,
                setup_signal=threading.current_thread()
                is threading.main_thread())
        except OSError as error:
            LOG.error('No report can be asked for: [oslo_reports] '
                      'file_event_handler cannot be looked at: %s', error)

    def stop(self) -> None:
        """Write no more."""
        self._asked.put(False)

    def write(self) -> None:
        """Write a report, into a file or to stderr, as configured."""
        text = self._text()
        directory = self._conf.oslo_reports.log_dir
        if directory:
            path = os.path.join(directory, time.strftime(
                f'{PROGRAM}_gurumeditation_%Y%m%d%H%M%S', time.gmtime()))
            try:
                _write_new(path, text)
            except OSError as error:
                LOG.error('A report on the agent goes to stderr: it cannot '
                          'be written to %s: %s', path, error)
            else:
                LOG.info('A report on the agent was written to %s', path)
                return
        print(text, file=sys.stderr, flush=True)  # noqa: T201

    def _run(self) -> None:
        while self._asked.get():
            try:
                self.write()
            except Exception:
                LOG.exception('No report on the agent can be written')

    def _text(self) -> str:
        made = report.TextReport('Guru Meditation')
        sections: dict[str, Callable[[], ty.Any]] = {
            'Package': lambda: (
                f'{PROGRAM} {version.version()}, process {os.getpid()}, '
                f'Python {platform.python_version()}, {platform.system()} '
                f'{platform.release()}'),
            'Threads': threads_section.ThreadReportGenerator(),
            'Processes': process_section.ProcessReportGenerator(),
            # Options that are marked secret are left out.
            'Configuration': conf_section.ConfigReportGenerator(self._conf),
            **{heading: _asking(ask)
               for heading, ask in self._questions.items()}}
        for heading, make in sections.items():
            made.add_section(heading, _guarded(make))
        return str(made.run())


def _asking(ask: _Ask) -> Callable[[], str]:
    return lambda: json.dumps(
        primitives.to_primitives(ask(_ANSWER_S)), indent=2, default=str)


def _guarded(make: Callable[[], ty.Any]) -> Callable[[], ty.Any]:
    """One section that cannot be made must not cost the others."""
    def guarded() -> ty.Any:
        try:
            return make()
        except TimeoutError:
            return (f'The loop did not answer within {_ANSWER_S:g} s: see '
                    'among the threads what holds it up.')
        except Exception as error:
            return f'Not available: {type(error).__name__}: {error}'
    return guarded


def _write_new(path: str, text: str) -> None:
    # For the owner alone, whatever the umask: it names servers and projects.
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL
                     | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, 'w', encoding='utf-8') as file:
        file.write(text)
