# SPDX-License-Identifier: Apache-2.0
"""The command that writes a report."""

import importlib
import itertools
import logging
import os
import sys
import types

import pytest

from nova_vqos.calibration import report as report_package
from nova_vqos.cmd.calibrate import app
from nova_vqos.cmd.calibrate import report as command
from nova_vqos.conf import default_path
from nova_vqos.profile import document
from nova_vqos.tests.fixtures import report_pages

page_of = report_pages.page_of
make = report_pages.make
report = report_pages.report


class TestCommand:

    @pytest.fixture
    def path(self, tmp_path):
        path = tmp_path / 'compute1.yaml'
        document.store(make(), str(path))
        return path

    @pytest.fixture
    def run(self, capsys):
        """:returns: what runs it: to its status, and all that it said"""
        def run(*arguments):
            status = app.main(['report', *map(str, arguments)])
            return status, ' '.join(capsys.readouterr().err.split())
        return run

    def test_it_writes_a_page(self, run, path, tmp_path):
        output = tmp_path / 'new' / 'report.html'
        status, said = run(path, '--output', output)
        assert status == 0
        assert f'Wrote a report on compute1 to {output}' in said
        assert output.read_text() == page_of(make())

    def test_the_hosts_own_profile(self, run, path, tmp_path, monkeypatch):
        monkeypatch.setattr(default_path, 'PROFILE', str(path))
        assert run('--output', tmp_path / 'report.html')[0] == 0

    def test_too_many(self, run, path, tmp_path):
        status, said = run(*[path] * 51, '--output', tmp_path / 'report.html')
        assert status == 1
        assert '51 profiles are too many for one page' in said

    def test_a_file_that_is_no_profile(self, run, path, tmp_path):
        (tmp_path / 'bad.yaml').write_text('{}')
        status, said = run(path, tmp_path / 'bad.yaml', '--output',
                           tmp_path / 'report.html')
        assert status == 1
        assert f'{tmp_path}/bad.yaml: schema is missing' in said
        assert not (tmp_path / 'report.html').exists()

    def test_a_profile_is_not_replaced(self, run, path, tmp_path):
        before = path.read_bytes()
        (tmp_path / 'link').symlink_to(path)
        for output in (path, tmp_path / 'link'):
            status, said = run(path, '--output', output)
            assert status == 1
            assert 'would be replaced' in said
        assert path.read_bytes() == before

    @pytest.mark.parametrize(('output', 'message'), [
        ('', 'is a directory'),
        ('compute1.yaml/report.html', 'cannot be written')])
    def test_where_nothing_can_be_written(self, run, path, tmp_path, output,
                                          message, monkeypatch):
        monkeypatch.setattr(report, 'render', None)
        status, said = run(path, '--output', tmp_path / output)
        assert status == 1
        assert message in said

    def test_without_matplotlib(self, run, path, tmp_path, monkeypatch):
        for name in ('page', 'charts'):
            monkeypatch.delitem(sys.modules,
                                f'nova_vqos.calibration.report.{name}')
            monkeypatch.delattr(report_package, name)
        monkeypatch.setitem(sys.modules, 'matplotlib', None)
        status, said = run(path, '--output', tmp_path / 'report.html')
        assert status == 1
        assert 'the package python3-matplotlib, or nova_vqos[report]' in said
        assert not (tmp_path / 'report.html').exists()
        # All other commands can do without.
        monkeypatch.delitem(sys.modules, 'nova_vqos.cmd.calibrate.report')
        assert importlib.import_module('nova_vqos.cmd.calibrate.report')

    @pytest.mark.parametrize('before', [None, '/somewhere'])
    def test_fonts_are_remembered_nowhere(self, monkeypatch, before):
        """The directory is matplotlib's while it is imported."""
        if before is None:
            monkeypatch.delenv('MPLCONFIGDIR', raising=False)
        else:
            monkeypatch.setenv('MPLCONFIGDIR', before)
        seen = []

        class Package(types.ModuleType):
            @property
            def page(self):
                seen.append(os.environ['MPLCONFIGDIR'])
                assert os.path.isdir(seen[0])
                return report

        monkeypatch.setitem(sys.modules, 'nova_vqos.calibration.report',
                            Package('nova_vqos.calibration.report'))
        assert command.load_library() is report
        assert not logging.getLogger('matplotlib').isEnabledFor(logging.INFO)
        assert seen[0] != before
        assert not os.path.exists(seen[0])
        assert os.environ.get('MPLCONFIGDIR') == before

    def test_progress_is_logged_now_and_then(self, run, path, tmp_path, caplog,
                                             monkeypatch):
        clock = itertools.count(step=2)
        monkeypatch.setattr(command, 'time', types.SimpleNamespace(
            monotonic=lambda: next(clock)))
        run(path, '--output', tmp_path / 'report.html')
        assert [message for message in caplog.messages
                if message.startswith('Drew')] == ['Drew 2 of 3 charts']
