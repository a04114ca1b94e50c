# SPDX-License-Identifier: Apache-2.0
"""The embedded demo, as a user starts it."""

import json
import os
import subprocess
import sys
import tempfile
import unittest

# Blocks what a plain container lacks, then is ``python -m``.
_WITHOUT_LIBVIRT = """
import runpy, sys
sys.modules['libvirt'] = None
sys.argv[1:] = ['--json', %r]
runpy.run_module('nova_vqos.tests.functional.embedded',
                 run_name='__main__')
"""


class EmbeddedTestCase(unittest.TestCase):

    def test_without_libvirt_and_without_a_home(self):
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, 'story.json')
            environment = {key: value for key, value in os.environ.items()
                           if key not in ('HOME', 'OS_TEST_TIMEOUT')}
            done = subprocess.run(
                # What is deprecated in Nova is no word of ours.
                [sys.executable, '-W', 'ignore', '-c',
                 _WITHOUT_LIBVIRT % path],
                cwd=directory, env=environment, stdin=subprocess.DEVNULL,
                capture_output=True, text=True, timeout=500, check=False)
            self.assertEqual(0, done.returncode, done.stdout + done.stderr)
            with open(path) as file:
                told = json.load(file)
            self.assertEqual(['story.json'], os.listdir(directory))

        # Nova 33 says on stderr that threads are new to it.
        self.assertEqual([], [line for line in done.stderr.splitlines()
                              if 'native threading' not in line])
        self.assertIn('measured speed', done.stdout)
        failed = [check for check in told['checks'] if not check['passed']]
        self.assertEqual([], failed)
        self.assertGreater(len(told['checks']), 10)
        for check in told['checks']:
            self.assertIn(check['name'], done.stdout)
            self.assertTrue(check['detail'], check)
        names = [check['name'] for check in told['checks']]
        self.assertEqual(len(set(names)), len(names))

        seen = [(m['story'], m['host'], m['moment'], m['promised_cu'],
                 m['quota_us'], m['cap_cu'], m['delivered_cu'])
                for m in told['measurements']]
        self.assertEqual([
            ('stock', 'fast', 'boot', 60, 15000, 60, None),
            ('stock', 'slow', 'migrated', 60, 15000, 24, None),
            ('units', 'fast', 'boot', 60, 15000, 60, None),
            ('units', 'slow', 'boot', 60, 37500, 60, None),
            ('units', 'slow', 'migrated', 60, 37500, 60, None),
            ('units', 'fast', 'migrated', 60, 15000, 60, None),
        ], seen)
